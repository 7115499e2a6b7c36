//! The mappings of a program, as /proc/PID/maps lists them.

use std::ops::Range;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it may be written to.
    pub writable: bool,
    /// Whether it may be executed.
    pub executable: bool,
    /// Whether what is written to it is written to its file, for everyone who maps that.
    pub shared: bool,
    /// Where it begins in its file.
    pub offset: u64,
    /// The superblock of its file, `major << 32 | minor`.
    pub device: u64,
    /// Inode of its file; 0: it has none.
    pub inode: u64,
    /// Name of its file, or what the kernel calls it (`[stack]`).
    pub name: String,
}

impl Mapping {
    /// One line; `None` where it is none.
    fn read(line: &str) -> Option<Mapping> {
        let mut rest = line;
        let (start, end) = next_field(&mut rest)?.split_once('-')?;
        let rights = next_field(&mut rest)?;
        let offset = hex(next_field(&mut rest)?)?;
        let (major, minor) = next_field(&mut rest)?.split_once(':')?;
        let inode = next_field(&mut rest)?.parse().ok()?;
        Some(Mapping {
            range: hex(start)?..hex(end)?,
            writable: rights.as_bytes().get(1) == Some(&b'w'),
            executable: rights.as_bytes().get(2) == Some(&b'x'),
            shared: rights.as_bytes().get(3) == Some(&b's'),
            offset,
            device: hex(major)? << 32 | hex(minor)?,
            inode,
            name: rest.to_owned(),
        })
    }

    /// Its name without what the kernel appends to that of a file that was deleted.
    #[must_use]
    pub fn name_of_file(&self) -> &str {
        self.name.strip_suffix(" (deleted)").unwrap_or(&self.name)
    }

    /// Whether it is code of a file that has a path.
    #[must_use]
    pub fn is_code_of_file(&self) -> bool {
        self.executable && self.name.starts_with('/')
    }

    /// The offset in the file of an address; `None` where it lies outside.
    #[must_use]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let inside = self.range.contains(&address);
        inside.then(|| (address - self.range.start).checked_add(self.offset))?
    }

    /// Whether it is a file's that lies on another device than this one.
    fn has_file_off(&self, device: u64) -> bool {
        (self.device != 0 || self.inode != 0) && self.device != device
    }
}

/// The word that `rest` begins with, which is taken from it; `None` where there is none.
fn next_field<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
    *rest = behind.trim_start_matches(' ');
    (!word.is_empty()).then_some(word)
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// All of them, in order.
#[must_use]
pub fn read(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(Mapping::read).collect()
}

/// The mapping of an address among some of [`read`], in their order.
#[must_use]
pub fn mapping_of(all: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = all.partition_point(|m| m.range.start <= address);
    all[..after].last().filter(|m| address < m.range.end)
}

/// Where stacks may be: memory that is written to and no file's, or one of `device`, the kernel's
/// own for memory that is shared. What adjoins is one: of a stack that is locked in part, as by
/// mlock(2), there are two mappings.
#[must_use]
pub fn memory(all: &[Mapping], device: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for m in all.iter().filter(|m| m.writable && !m.has_file_off(device)) {
        match ranges.last_mut() {
            Some(before) if before.end == m.range.start => before.end = m.range.end,
            _ => ranges.push(m.range.clone()),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_line_is_a_mapping() {
        let text = "\
55d0c8a00000-55d0c8a2a000 r-xp 00002000 08:01 393 /usr/bin/a name (deleted)
7ffd5e1c8000-7ffd5e1e9000 rw-p 00000000 00:00 0                          [stack]
7f0000000000-7f0000001000 ---p 00000000 00:00 0
nonsense
";
        let all = read(text);
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].name, "/usr/bin/a name (deleted)");
        assert_eq!((all[0].offset, all[0].inode), (0x2000, 393));
        assert_eq!(all[0].device, 8 << 32 | 1);
        assert_eq!(all[0].range, 0x55d0_c8a0_0000..0x55d0_c8a2_a000);
        assert!(all[0].executable && !all[1].executable);
        assert!(!all[0].writable && all[1].writable);
        assert_eq!(all[1].name, "[stack]");
        assert_eq!(all[2].name, "");
    }

    #[test]
    fn stacks_are_in_memory_and_what_adjoins_is_one() {
        let text = "\
1000-2000 rw-p 00000000 00:00 0
2000-3000 rw-p 00000000 00:00 0 [anon: locked]
3000-4000 ---p 00000000 00:00 0
4000-5000 rw-p 00000000 00:00 0
5000-6000 rw-p 00000000 08:01 12 /usr/bin/a
6000-7000 rw-s 00000000 00:01 13 /dev/zero (deleted)
7000-8000 rw-p 00000000 00:01 14 /memfd:b (deleted)
8000-9000 r--p 00000000 00:00 0
";
        let ranges = memory(&read(text), 1);
        assert_eq!(ranges, [0x1000..0x3000, 0x4000..0x5000, 0x6000..0x8000]);
    }

    #[test]
    fn an_address_is_found_in_its_mapping_and_nowhere_else() {
        let text = "\
55cd728d4000-55cd728d6000 r--p 00000000 fe:00 247026                     /usr/bin/cat
55cd728d6000-55cd728db000 r-xp 00002000 fe:00 247026                     /usr/bin/cat
7f0000000000-7f0000001000 r-xp 00001000 00:2a 77                         /a b/c d (deleted)
7fff00000000-7fff00001000 r-xp 00000000 00:00 0                          [vdso]
";
        let all: Vec<Mapping> = read(text)
            .into_iter()
            .filter(Mapping::is_code_of_file)
            .collect();
        let names: Vec<&str> = all.iter().map(Mapping::name_of_file).collect();
        assert_eq!(names, ["/usr/bin/cat", "/a b/c d"]);
        let found = mapping_of(&all, 0x55cd_728d_6010).expect("it is there");
        assert_eq!(found.offset_of(0x55cd_728d_6010), Some(0x2010));
        assert_eq!(found.offset_of(0x55cd_728d_b000), None);
        for address in [
            0,
            0x55cd_728d_4000,
            0x55cd_728d_b000,
            0x7fff_0000_0000,
            u64::MAX,
        ] {
            assert_eq!(mapping_of(&all, address), None);
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_trouble(
            text in "[0-9a-f :rwxp/\\[\\]\n-]{0,200}",
            address in any::<u64>(),
        ) {
            let all = read(&text);
            let _ = mapping_of(&all, address).and_then(|m| m.offset_of(address));
        }
    }
}
