//! What a program finds on its stack when it begins: arguments, environment, and what the kernel
//! tells it about itself (the auxiliary vector; getauxval(3), and the ABI's "process
//! initialization").
//!
//! Promise: [`Start::with`] moves nothing but the lists of pointers: every string stays where the
//! kernel put it, where /proc/PID/cmdline and /proc/PID/environ look for it.

/// Numbers of the auxiliary vector (linux/auxvec.h).
pub mod aux {
    /// Where the program headers are in memory.
    pub const PHDR: u64 = 3;
    /// How many program headers there are.
    pub const PHNUM: u64 = 5;
    /// Where the program interpreter (ld.so) lies; 0: there is none.
    pub const BASE: u64 = 7;
    /// Where the program's own code begins.
    pub const ENTRY: u64 = 9;
    /// Whether the program gained rights: ld.so takes no library from the environment then.
    pub const SECURE: u64 = 23;
    /// Where the kernel's own piece of code lies (vdso(7)).
    pub const VDSO: u64 = 33;
    /// The name that was executed; the last string of all.
    pub const EXECFN: u64 = 31;
}

/// Bytes of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Of a 32-bit program.
    Four,
    /// Of a 64-bit program.
    Eight,
}

impl Word {
    fn len(self) -> usize {
        match self {
            Word::Four => 4,
            Word::Eight => 8,
        }
    }

    fn read(self, bytes: &[u8], k: usize) -> Option<u64> {
        let len = self.len();
        let mut word = [0; 8];
        let from = k.checked_mul(len)?;
        word[..len].copy_from_slice(bytes.get(from..from + len)?);
        Some(u64::from_le_bytes(word))
    }
}

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Variable {
    at: u64,
    /// `NAME=VALUE`.
    text: Vec<u8>,
}

impl Variable {
    /// Reads the one at address `at` of a stack that begins at `sp`.
    fn read(stack: &[u8], sp: u64, at: u64) -> Option<Variable> {
        let from = usize::try_from(at.checked_sub(sp)?).ok()?;
        let rest = stack.get(from..)?;
        let len = rest.iter().position(|b| *b == 0)?;
        let text = rest[..len].to_vec();
        Some(Variable { at, text })
    }
}

/// What a program finds.
#[derive(Clone, Debug)]
pub struct Start {
    word: Word,
    sp: u64,
    args: Vec<u64>,
    env: Vec<Variable>,
    aux: Vec<(u64, u64)>,
    aux_at: u64,
}

impl Start {
    /// Reads what lies at `sp`, the stack pointer that the program begins with. `stack` is the
    /// memory from there on; `None` where that is not enough of it.
    #[must_use]
    pub fn read(stack: &[u8], sp: u64, word: Word) -> Option<Start> {
        let count = usize::try_from(word.read(stack, 0)?).ok()?;
        let args = (1..=count)
            .map(|k| word.read(stack, k))
            .collect::<Option<Vec<u64>>>()?;
        let mut k = count.checked_add(2)?;
        let mut pointers = Vec::new();
        loop {
            let pointer = word.read(stack, k)?;
            k += 1;
            if pointer == 0 {
                break;
            }
            pointers.push(pointer);
        }
        let aux_at = sp.wrapping_add((k * word.len()) as u64);
        let mut aux = Vec::new();
        loop {
            let pair = (word.read(stack, k)?, word.read(stack, k + 1)?);
            k += 2;
            if pair.0 == 0 {
                break;
            }
            aux.push(pair);
        }
        let env = pointers
            .into_iter()
            .map(|at| Variable::read(stack, sp, at))
            .collect::<Option<_>>()?;
        Some(Start {
            word,
            sp,
            args,
            env,
            aux,
            aux_at,
        })
    }

    /// The value of a variable; the first, where there are several.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&[u8]> {
        self.env.iter().find_map(|v| value_of(&v.text, name))
    }

    /// An entry of the auxiliary vector.
    #[must_use]
    pub fn aux(&self, number: u64) -> Option<u64> {
        let mut all = self.aux.iter();
        all.find(|(k, _)| *k == number).map(|(_, v)| *v)
    }

    /// Where the value of an entry of the auxiliary vector lies.
    #[must_use]
    pub fn aux_at(&self, number: u64) -> Option<u64> {
        let k = self.aux.iter().position(|(k, _)| *k == number)?;
        Some(self.aux_at + ((2 * k + 1) * self.word.len()) as u64)
    }

    /// Where the pointers to the arguments and to the variables begin.
    #[must_use]
    pub fn lists(&self) -> (u64, u64) {
        let len = self.word.len() as u64;
        let args = self.sp + len;
        (args, args + (self.args.len() as u64 + 1) * len)
    }

    /// The stack as it is to be for these variables to have these values: where it begins, and what
    /// lies from there up to where it began before. What is above stays.
    #[must_use]
    pub fn with(&self, variables: &[(&str, Vec<u8>)]) -> (u64, Vec<u8>) {
        let texts = variables.iter().map(|(name, value)| {
            let mut text = format!("{name}=").into_bytes();
            text.extend(value);
            text.push(0);
            text
        });
        let texts: Vec<Vec<u8>> = texts.collect();
        let all: u64 = texts.iter().map(|t| t.len() as u64).sum();
        let strings = self.sp - all;
        let mut at = strings;
        let mut env: Vec<u64> = self.env.iter().map(|v| v.at).collect();
        for ((name, _), text) in variables.iter().zip(&texts) {
            let mut is_there = false;
            for (k, old) in self.env.iter().enumerate() {
                if value_of(&old.text, name).is_some() {
                    env[k] = at;
                    is_there = true;
                }
            }
            if !is_there {
                env.push(at);
            }
            at += text.len() as u64;
        }
        let words = self.words(&env);
        let len = (words.len() * self.word.len()) as u64;
        let sp = (strings - len) & !15;
        let mut bytes: Vec<u8> = words
            .iter()
            .flat_map(|w| w.to_le_bytes().into_iter().take(self.word.len()))
            .collect();
        bytes.resize(usize::try_from(strings - sp).unwrap_or(0), 0);
        texts.iter().for_each(|t| bytes.extend(t));
        (sp, bytes)
    }

    fn words(&self, env: &[u64]) -> Vec<u64> {
        let mut words = vec![self.args.len() as u64];
        words.extend(&self.args);
        words.push(0);
        words.extend(env);
        words.push(0);
        self.aux.iter().for_each(|(k, v)| words.extend([k, v]));
        words.extend([0, 0]);
        words
    }
}

fn value_of<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    text.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SP: u64 = 0x7ffd_0000_1230;

    /// A stack as the kernel makes it.
    fn stack(word: Word, sp: u64, args: &[&str], env: &[&str], aux: &[(u64, u64)]) -> Vec<u8> {
        let words = 1 + args.len() + 1 + env.len() + 1 + 2 * (aux.len() + 1);
        let mut at = sp + (words * word.len()) as u64;
        let mut strings = Vec::new();
        let mut place = |text: &&str| {
            let here = at;
            strings.extend(text.as_bytes());
            strings.push(0);
            at += text.len() as u64 + 1;
            here
        };
        let args: Vec<u64> = args.iter().map(&mut place).collect();
        let env = env.iter().map(&mut place);
        let env = env.map(|at| Variable {
            at,
            text: Vec::new(),
        });
        let start = Start {
            word,
            sp,
            args,
            env: env.collect(),
            aux: aux.to_vec(),
            aux_at: 0,
        };
        let env: Vec<u64> = start.env.iter().map(|v| v.at).collect();
        let words = start.words(&env);
        let bytes = words
            .iter()
            .flat_map(|w| w.to_le_bytes().into_iter().take(word.len()));
        bytes.chain(strings).collect()
    }

    fn texts(start: &Start) -> Vec<String> {
        let text = |v: &Variable| String::from_utf8_lossy(&v.text).into_owned();
        start.env.iter().map(text).collect()
    }

    #[test]
    fn a_variable_is_added_or_given_another_value() {
        for word in [Word::Four, Word::Eight] {
            let sp = if word == Word::Four { 0xffd0_1230 } else { SP };
            let before = stack(word, sp, &["a", "bc"], &["X=1", "Y="], &[(3, 7), (9, 5)]);
            let start = Start::read(&before, sp, word).expect("whole");
            assert_eq!(start.variable("X"), Some(&b"1"[..]));
            assert_eq!((start.variable("Z"), start.aux(9)), (None, Some(5)));
            let (to, below) = start.with(&[("Y", b"longer".to_vec()), ("Z", b"z".to_vec())]);
            assert_eq!((to % 16, to + below.len() as u64), (0, sp));
            let after = [below, before.clone()].concat();
            let again = Start::read(&after, to, word).expect("whole");
            assert_eq!(again.args, start.args);
            assert_eq!(again.aux, start.aux);
            assert_eq!(texts(&again), ["X=1", "Y=longer", "Z=z"]);
            let at = again.aux_at(9).expect("there");
            let from = usize::try_from(at - to).expect("near");
            assert_eq!(word.read(&after[from..], 0), Some(5));
            let (args, env) = again.lists();
            let at = |at: u64| word.read(&after[usize::try_from(at - to).expect("near")..], 0);
            assert_eq!(
                (at(args), at(env)),
                (Some(start.args[0]), Some(start.env[0].at))
            );
        }
    }

    #[test]
    fn every_variable_of_that_name_is_given_the_value() {
        let before = stack(Word::Eight, SP, &[], &["A=1", "B=", "A=2"], &[]);
        let start = Start::read(&before, SP, Word::Eight).expect("whole");
        let (to, below) = start.with(&[("A", b"3".to_vec())]);
        let again = Start::read(&[below, before].concat(), to, Word::Eight).expect("whole");
        assert_eq!(texts(&again), ["A=3", "B=", "A=3"]);
    }

    #[test]
    fn too_little_of_it_is_none() {
        let whole = stack(Word::Eight, SP, &["a"], &["X=1"], &[(3, 7)]);
        for n in 0..whole.len() - 1 {
            assert!(Start::read(&whole[..n], SP, Word::Eight).is_none(), "{n}");
        }
        assert!(Start::read(&whole, SP, Word::Eight).is_some());
    }

    proptest! {
        #[test]
        fn no_memory_is_a_trouble(
            bytes in prop::collection::vec(0u8..4, 0..400),
            sp in any::<u64>(),
        ) {
            for word in [Word::Four, Word::Eight] {
                let _ = Start::read(&bytes, sp, word);
            }
        }

        #[test]
        fn what_was_there_stays(
            args in prop::collection::vec("[a-z]{0,9}", 0..5),
            env in prop::collection::vec("[A-C]=[a-z]{0,9}", 0..5),
            value in "[a-z/:.]{0,40}",
        ) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let env: Vec<&str> = env.iter().map(String::as_str).collect();
            let before = stack(Word::Eight, SP, &args, &env, &[(7, 1)]);
            let start = Start::read(&before, SP, Word::Eight).expect("whole");
            let (to, below) = start.with(&[("D", value.clone().into_bytes())]);
            let again = Start::read(&[below, before].concat(), to, Word::Eight).expect("whole");
            prop_assert_eq!(again.variable("D"), Some(value.as_bytes()));
            prop_assert_eq!(&again.env[..env.len()], &start.env[..]);
            prop_assert_eq!((again.args, again.aux), (start.args, start.aux));
        }
    }
}
