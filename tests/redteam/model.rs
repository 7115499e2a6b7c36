//! A model of disks and mounts, changed at random by somebody outside of the session, while a
//! scribe in the session writes wherever something is mounted. Whatever was acknowledged is looked
//! for in a copy of its disk's image, behind each `settle` and behind the end.

use super::*;
use crate::harness::disk::{keep_mounts_private, mount_copy};
use crate::harness::limits::{below, count, seed};
use crate::sessions::stage::as_root;
use std::path::PathBuf;

const KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "ext2"];
const POINTS: usize = 5;

/// A loop device, what was made on it, and what has to be there.
struct Device {
    name: String,
    image: PathBuf,
    kind: &'static str,
    kept: Vec<PathBuf>,
    /// Its subvolumes, where it is a btrfs.
    volumes: Vec<PathBuf>,
}

/// What lies at a mount point.
#[derive(Clone)]
struct Mounted {
    device: usize,
    /// The folder on the device that is seen there.
    folder: PathBuf,
}

struct Model {
    stage: Stage,
    devices: Vec<Device>,
    /// By point, the mount on top last; `None` is memory.
    points: Vec<Vec<Option<Mounted>>>,
    chance: u64,
    names: usize,
    done: Vec<String>,
}

impl Drop for Model {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("done: {}", self.done.join("; "));
        }
        for point in 0..POINTS {
            let at = self.point(point);
            while run(clean("umount").arg("-l").arg(&at)).status.success() {}
        }
        for device in &self.devices {
            run(clean("losetup").arg("-d").arg(&device.name));
        }
    }
}

impl Model {
    fn new(chance: u64) -> Model {
        keep_mounts_private();
        let stage = Stage::new("model");
        let mut model = Model {
            stage,
            devices: Vec::new(),
            points: vec![Vec::new(); POINTS],
            chance,
            names: 0,
            done: Vec::new(),
        };
        for number in 0..2 {
            let image = model.stage.file(&format!("image-{number}"));
            let file = std::fs::File::create(&image).expect("an image");
            file.set_len(320 << 20).expect("its size");
            let mut setup = clean("losetup");
            setup.args(["--find", "--show"]).arg(&image);
            model.devices.push(Device {
                name: run(&mut setup).must_succeed().stdout.trim().to_owned(),
                image,
                kind: "ext4",
                kept: Vec::new(),
                volumes: Vec::new(),
            });
            model.format(number);
        }
        for point in 0..POINTS {
            std::fs::create_dir(model.point(point)).expect("a mount point");
        }
        model
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(below(&mut self.chance, n as u64)).expect("small")
    }

    fn point(&self, number: usize) -> PathBuf {
        self.stage.work().join(format!("point-{number}"))
    }

    /// Runs a command of the outsider; whether it succeeded.
    fn tries(&mut self, words: &[&str]) -> bool {
        let done = run(clean(words[0]).args(&words[1..])).status.success();
        self.done.push(format!(
            "{}{}",
            words.join(" "),
            if done { "" } else { " (no)" }
        ));
        done
    }

    /// Makes a file system anew on a device that nobody uses.
    fn format(&mut self, number: usize) {
        let kind = KINDS[self.below(KINDS.len())];
        let force = if kind.starts_with("ext") { "-F" } else { "-f" };
        let name = self.devices[number].name.clone();
        // Mounted somewhere, it says so: the tools open it exclusively.
        if self.tries(&[&format!("mkfs.{kind}"), "-q", force, &name]) {
            self.devices[number].kind = kind;
            self.devices[number].kept.clear();
            self.devices[number].volumes.clear();
        }
    }

    fn mount_disk(&mut self) {
        let (number, point) = (self.below(self.devices.len()), self.below(POINTS));
        let (name, at) = (self.devices[number].name.clone(), self.point(point));
        let kind = self.devices[number].kind;
        if self.tries(&["mount", "-t", kind, &name, &at.display().to_string()]) {
            let folder = PathBuf::new();
            self.points[point].push(Some(Mounted {
                device: number,
                folder,
            }));
        }
    }

    fn mount_memory(&mut self) {
        let point = self.below(POINTS);
        let at = self.point(point).display().to_string();
        if self.tries(&["mount", "-t", "tmpfs", "none", &at]) {
            self.points[point].push(None);
        }
    }

    /// Binds or moves one point to another.
    fn rearrange(&mut self) {
        let (from, to) = (self.below(POINTS), self.below(POINTS));
        let Some(top) = self.points[from].last().cloned().filter(|_| from != to) else {
            return;
        };
        let how = ["--bind", "--move"][self.below(2)];
        let (a, b) = (self.point(from), self.point(to));
        if self.tries(&[
            "mount",
            how,
            &a.display().to_string(),
            &b.display().to_string(),
        ]) {
            if how == "--move" {
                self.points[from].pop();
            }
            self.points[to].push(top);
        }
    }

    fn mount_overlay(&mut self) {
        let (from, to) = (self.below(POINTS), self.below(POINTS));
        let Some(Some(below)) = self.points[from].last().cloned().filter(|_| from != to) else {
            return;
        };
        self.names += 1;
        let base = PathBuf::from(format!("overlay-{}", self.names));
        let at = self.point(from).join(&base);
        let part = |name: &str| at.join(name).display().to_string();
        for name in ["l", "u", "w"] {
            if std::fs::create_dir_all(at.join(name)).is_err() {
                return;
            }
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            part("l"),
            part("u"),
            part("w")
        );
        let to_text = self.point(to).display().to_string();
        if self.tries(&["mount", "-t", "overlay", "-o", &options, "none", &to_text]) {
            let folder = below.folder.join(base).join("u");
            self.points[to].push(Some(Mounted {
                device: below.device,
                folder,
            }));
        }
    }

    /// Unmounts a point: by somebody else, lazily, or by the scribe.
    fn umount(&mut self, scribe: &mut Running) {
        let point = self.below(POINTS);
        let at = self.point(point).display().to_string();
        let done = match self.below(3) {
            0 => self.tries(&["umount", &at]),
            1 => self.tries(&["umount", "-l", &at]),
            _ => does(scribe, &format!("umount {at}")) == 0,
        };
        self.done.push(format!("umount of {point}: {done}"));
        if done {
            self.points[point].pop();
        }
    }

    fn save(&mut self, scribe: &mut Running) {
        let point = self.below(POINTS);
        let Some(top) = self.points[point].last().cloned() else {
            return;
        };
        self.save_in(scribe, &self.point(point), top.as_ref());
    }

    /// Has it save files in a folder, which lies on a device or in memory.
    fn save_in(&mut self, scribe: &mut Running, folder: &Path, there: Option<&Mounted>) {
        for _ in 0..=self.below(3) {
            self.names += 1;
            let name = format!("file-{}", self.names);
            let path = folder.join(&name).display().to_string();
            // A full or broken disk says so: then it is not acknowledged.
            let saved = does(scribe, &format!("save {path}")) == 0;
            self.done.push(format!("save {path}: {saved}"));
            if let (true, Some(mounted)) = (saved, there) {
                self.devices[mounted.device]
                    .kept
                    .push(mounted.folder.join(name));
            }
        }
    }

    /// Makes a subvolume in which something is saved, or deletes one.
    fn subvolume(&mut self, scribe: &mut Running) {
        let point = self.below(POINTS);
        let Some(Some(on)) = self.points[point].last().cloned() else {
            return;
        };
        if self.devices[on.device].kind != "btrfs" || on.folder != Path::new("") {
            return;
        }
        let volumes = self.devices[on.device].volumes.len();
        if volumes > 0 && self.below(2) == 0 {
            let which = self.below(volumes);
            let volume = self.devices[on.device].volumes[which].clone();
            let at = self.point(point).join(&volume).display().to_string();
            if self.tries(&["btrfs", "-q", "subvolume", "delete", &at]) {
                let device = &mut self.devices[on.device];
                device.volumes.remove(which);
                device.kept.retain(|file| !file.starts_with(&volume));
            }
            return;
        }
        self.names += 1;
        let folder = PathBuf::from(format!("volume-{}", self.names));
        let at = self.point(point).join(&folder);
        let text = at.display().to_string();
        if self.tries(&["btrfs", "-q", "subvolume", "create", &text]) {
            self.devices[on.device].volumes.push(folder.clone());
            let device = on.device;
            self.save_in(scribe, &at, Some(&Mounted { device, folder }));
        }
    }

    fn step(&mut self, scribe: &mut Running) {
        match self.below(16) {
            0 => {
                let number = self.below(self.devices.len());
                self.format(number);
            }
            1 | 2 => self.mount_disk(),
            3 => self.mount_memory(),
            4 => self.rearrange(),
            5 => self.mount_overlay(),
            6 | 7 => self.umount(scribe),
            12..=15 => self.subvolume(scribe),
            _ => self.save(scribe),
        }
    }

    /// Looks for everything that was acknowledged, in copies of the images.
    fn check(&mut self) {
        for number in 0..self.devices.len() {
            let device = &self.devices[number];
            let (copy, at) = (self.stage.file("copy"), self.stage.file("copied"));
            let mut cp = clean("cp");
            cp.args(["--sparse=always"]).arg(&device.image).arg(&copy);
            run(&mut cp).must_succeed();
            let _ = std::fs::create_dir(&at);
            mount_copy(device.kind, &copy, &at);
            let names: Vec<&str> = device.kept.iter().filter_map(|p| p.to_str()).collect();
            let lost: Vec<&&str> = names.iter().filter(|n| !is_whole(&at.join(n))).collect();
            let kind = device.kind;
            umount(&at);
            assert!(
                lost.is_empty(),
                "lost on device {number} ({kind}): {lost:?}"
            );
        }
    }
}

fn is_whole(path: &Path) -> bool {
    let text = std::fs::read(path).unwrap_or_default();
    text.len() == 4096 && text.iter().all(|b| *b == b'k')
}

#[test]
fn soak_random_mounts_of_others_lose_nothing() {
    if !as_root("soak_random_mounts_of_others_lose_nothing") {
        return;
    }
    let (mut chance, rounds) = (seed(), count(6, 1000));
    println!("seed {chance}");
    // A session each 25 rounds, and new disks.
    for part in 0..rounds.div_ceil(25) {
        let mut model = Model::new(chance);
        let mut scribe = scribe(&model.stage, &[]);
        let id = model.stage.id();
        model.done.push(format!("part {part}, seed {chance}"));
        for _ in 0..rounds.min(25) {
            for _ in 0..16 {
                model.step(&mut scribe);
            }
            model.stage.ask(&["settle", &id]).must_succeed();
            model.check();
        }
        let end = scribe.end();
        assert_eq!(
            end.status.code(),
            Some(0),
            "{end}\n{:#}",
            model.stage.report()
        );
        model.check();
        chance = model.chance;
    }
}
