//! One row, and the names that rows refer to.

use std::collections::HashMap;

/// A text that was interned in [`Names`]; the default stands for null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub(crate) u32);

impl Name {
    /// Null.
    pub const NONE: Name = Name(0);
}

/// Texts by number: a row is a plain copy, and a batch finds its dictionary without hashing.
#[derive(Debug)]
pub struct Names {
    ids: HashMap<Box<str>, u32>,
    texts: Vec<Box<str>>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            ids: HashMap::new(),
            texts: vec!["".into()],
        }
    }
}

impl Names {
    /// The name of `text`. An empty text is a text, and not null.
    pub fn name(&mut self, text: &str) -> Name {
        if let Some(id) = self.ids.get(text) {
            return Name(*id);
        }
        let id = u32::try_from(self.texts.len()).expect("memory ends before names do");
        self.texts.push(text.into());
        self.ids.insert(text.into(), id);
        Name(id)
    }

    /// The text of a name; empty for [`Name::NONE`].
    #[must_use]
    pub fn text(&self, name: Name) -> &str {
        &self.texts[name.0 as usize]
    }

    /// How many names there are, null among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether nothing has a name yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }
}

/// One row; see docs/FORMAT.md for the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs)] // FORMAT.md says it once for every language
pub struct Row {
    pub event: Name,
    pub time_ns: i64,
    pub duration_ns: Option<u64>,
    pub pid: Option<u32>,
    pub tid: Option<u32>,
    pub uid: Option<u32>,
    pub exe: Name,
    pub command: Name,
    pub kind: Name,
    pub fd: Option<i32>,
    pub path: Name,
    pub inode: Option<u64>,
    pub fstype: Name,
    pub mount: Name,
    pub device: Name,
    pub parents: Name,
    pub flags: Option<u32>,
    pub result: Option<i64>,
    pub errno: Option<i32>,
    pub answered: Name,
    pub done: Name,
    pub reason: Name,
    pub debt: Option<u64>,
    pub bytes: Option<u64>,
    pub dirty: Option<bool>,
    pub caller: Name,
    pub metric: Name,
    pub value: Option<f64>,
}
