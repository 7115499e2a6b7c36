//! Where a file lies: file system, mount point, device, and what the device is made of.
//!
//! Promise: mount tables are read at most every 100 ms each, and never for more than about a tenth
//! of the time; a mount id that the kernel gave to another mount is told apart within that time.
//! No path is opened that a mount table names, except devices below /dev.
//!
//! What it does not do: the path of an overlay's upper folder and of a loop device's file is
//! compared with the mount points as text. A link in it may lead elsewhere.
//!
//! Relies on: mount ids being those of one kernel, whatever the namespace.

use super::parents::{Blocks, Part};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use synclater_policy::filesystem::{kind, server_of, upper_of, FsKind};
use synclater_proc::mountinfo::{mount_of, parse_mountinfo, Mount};
use synclater_sys::mount::namespace_number;

/// A mount table that is older is read again.
const TABLE_AGE: Duration = Duration::from_millis(100);
/// A place that is older is put together again: a loop device may have another file by then.
const PLACE_AGE: Duration = Duration::from_secs(1);
/// A table that lacks an id is read again after this many times what reading it takes.
const PATIENCE: u32 = 10;
const TABLES_MAX: usize = 256;
const PROCESSES_MAX: usize = 1 << 14;
const DEVICES_MAX: usize = 1 << 10;
/// Bytes of a mount table that are read.
const TABLE_BYTES: u64 = 16 << 20;
/// Overlays upon overlays that are followed.
const DEPTH: usize = 4;

/// Where a file lies; what is not known is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Type of the file system.
    pub fstype: String,
    /// Its mount point, as the process sees it.
    pub mount: String,
    /// Its device: `/dev/sda1`; of an overlay that of its upper folder; of a network file system
    /// server and path.
    pub device: String,
    /// The device and what it is made of, nearest first: `sda1 < sda`; `server nas1`.
    pub parents: String,
}

/// What decides which mounts a process sees, and under which names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct View {
    namespace: u64,
    root: OsString,
}

struct CachedMount {
    mount: Mount,
    place: Arc<Location>,
    made: Instant,
}

/// One mount table.
struct Table {
    mounts: Vec<Mount>,
    by_id: HashMap<u64, usize>,
    places: HashMap<u64, CachedMount>,
    read: Instant,
    took: Duration,
}

/// Where files lie, as far as it was asked.
pub struct Places {
    blocks: Blocks,
    /// By view; the default one is our own.
    tables: HashMap<View, Table>,
    views: HashMap<u32, (View, Instant)>,
    devices: HashMap<(u32, u32), (Arc<Location>, Instant)>,
}

impl Default for Places {
    fn default() -> Places {
        Places::new()
    }
}

impl Places {
    /// Nothing known yet.
    #[must_use]
    pub fn new() -> Places {
        Places {
            blocks: Blocks::new(Path::new("/sys")),
            tables: HashMap::new(),
            views: HashMap::new(),
            devices: HashMap::new(),
        }
    }

    /// Where the mount lies that process `pid` knows by `mount_id`, the first field of mountinfo
    /// (0: not known). `dev` is the device number that stat shows, (0, 0) where it is not known.
    pub fn of_mount(&mut self, pid: u32, mount_id: u64, dev: (u32, u32)) -> Arc<Location> {
        let now = Instant::now();
        let view = self.view_of(pid, now);
        let own = View::default();
        let ways = [(&view, pid.to_string()), (&own, "self".to_owned())];
        let ways = &ways[usize::from(view == own)..];
        if mount_id != 0 {
            for (view, who) in ways {
                if let Some(place) = self.by_id(view, who, mount_id, dev, now) {
                    return place;
                }
            }
        }
        for (view, who) in ways {
            if let Some(id) = self.id_of(view, who, dev, now) {
                if let Some(place) = self.by_id(view, who, id, dev, now) {
                    return place;
                }
            }
        }
        self.bare(dev, now)
    }

    /// Where the file system with a device number lies.
    pub fn of_dev(&mut self, dev: (u32, u32)) -> Arc<Location> {
        let now = Instant::now();
        let own = View::default();
        let id = self.id_of(&own, "self", dev, now);
        let place = id.and_then(|id| self.by_id(&own, "self", id, dev, now));
        place.unwrap_or_else(|| self.bare(dev, now))
    }

    /// The view of a process; the last known of one that is gone, ours if there is none.
    fn view_of(&mut self, pid: u32, now: Instant) -> View {
        let known = self.views.get(&pid);
        if let Some((view, seen)) = known {
            if now.saturating_duration_since(*seen) < TABLE_AGE {
                return view.clone();
            }
        }
        let namespace = namespace_number(Path::new(&format!("/proc/{pid}/ns/mnt")));
        let root = std::fs::read_link(format!("/proc/{pid}/root"));
        let view = match (root, known) {
            (Ok(root), _) if namespace != 0 => View {
                namespace,
                root: root.into_os_string(),
            },
            (_, Some((view, _))) => view.clone(),
            // Another user's process: its mounts may be read all the same.
            _ if Path::new(&format!("/proc/{pid}")).exists() => View {
                namespace: 0,
                root: format!("process {pid}").into(),
            },
            _ => return View::default(),
        };
        if self.views.len() >= PROCESSES_MAX {
            self.views.clear();
        }
        self.views.insert(pid, (view.clone(), now));
        view
    }

    /// The place of a mount in a table, which is read again where it must be.
    fn by_id(
        &mut self,
        view: &View,
        who: &str,
        id: u64,
        dev: (u32, u32),
        now: Instant,
    ) -> Option<Arc<Location>> {
        self.refresh(view, who, now, false);
        if self.tables.get(view)?.mount_with(id, dev).is_none() {
            self.refresh(view, who, now, true);
        }
        let table = self.tables.get(view)?;
        let mount = table.mount_with(id, dev)?;
        let known = table.places.get(&id);
        if let Some(known) = known {
            if now.saturating_duration_since(known.made) < PLACE_AGE {
                return Some(known.place.clone());
            }
        }
        let (mount, known) = (mount.clone(), known.map(|k| k.place.clone()));
        if *view != View::default() {
            self.refresh(&View::default(), "self", now, false);
        }
        let fresh = self.place_of(&mount, view);
        let place = known.filter(|k| **k == fresh);
        let place = place.unwrap_or_else(|| Arc::new(fresh));
        let made = now;
        let entry = CachedMount {
            mount,
            place: place.clone(),
            made,
        };
        self.tables.get_mut(view)?.places.insert(id, entry);
        Some(place)
    }

    /// The mount of a device in a table: that of its root folder, if there is one.
    fn id_of(&mut self, view: &View, who: &str, dev: (u32, u32), now: Instant) -> Option<u64> {
        if dev == (0, 0) {
            return None;
        }
        self.refresh(view, who, now, false);
        if let Some(id) = self.tables.get(view)?.id_of(dev) {
            return Some(id);
        }
        self.refresh(view, who, now, true);
        self.tables.get(view)?.id_of(dev)
    }

    /// Reads a table that is not known or too old; where it `lacks` something, earlier.
    fn refresh(&mut self, view: &View, who: &str, now: Instant, lacks: bool) {
        if let Some(table) = self.tables.get(view) {
            let age = now.saturating_duration_since(table.read);
            let rest = table.took * PATIENCE;
            let wait = if lacks { rest } else { rest.max(TABLE_AGE) };
            if age < wait {
                return;
            }
        } else if self.tables.len() >= TABLES_MAX {
            self.tables
                .retain(|_, t| now.saturating_duration_since(t.read) < PLACE_AGE * 10);
            if self.tables.len() >= TABLES_MAX {
                self.tables.clear();
            }
        }
        let begin = Instant::now();
        let mounts = read_table(who);
        let table = self.tables.entry(view.clone()).or_insert_with(|| Table {
            mounts: Vec::new(),
            by_id: HashMap::new(),
            places: HashMap::new(),
            read: now,
            took: Duration::ZERO,
        });
        // Of a process that is gone the last table stays.
        if !mounts.is_empty() {
            table.take(mounts);
        }
        table.read = now;
        table.took = begin.elapsed();
    }

    /// What /sys says of a device that no table has.
    fn bare(&mut self, dev: (u32, u32), now: Instant) -> Arc<Location> {
        if let Some((place, made)) = self.devices.get(&dev) {
            if now.saturating_duration_since(*made) < PLACE_AGE {
                return place.clone();
            }
        }
        let mut place = Location::default();
        if let Some(part) = self.blocks.by_number(dev).filter(|_| dev.0 != 0) {
            place.device = self.blocks.path_of(&part);
            place.parents = self.chain(vec![part]);
        }
        if self.devices.len() >= DEVICES_MAX {
            self.devices.clear();
        }
        let place = Arc::new(place);
        self.devices.insert(dev, (place.clone(), now));
        place
    }

    fn place_of(&self, mount: &Mount, view: &View) -> Location {
        let (device, parts) = self.origin(mount, view, DEPTH);
        Location {
            fstype: mount.fstype.clone(),
            mount: mount.path().to_string_lossy().into_owned(),
            device,
            parents: self.chain(parts),
        }
    }

    fn chain(&self, parts: Vec<Part>) -> String {
        let own = View::default();
        self.blocks.chain(parts, &|file| {
            let mount = self.mount_at(&own, file);
            mount.map_or(Vec::new(), |mount| self.origin(mount, &own, DEPTH).1)
        })
    }

    fn mount_at(&self, view: &View, path: &Path) -> Option<&Mount> {
        let table = self.tables.get(view)?;
        mount_of(&table.mounts, path).filter(|_| path.is_absolute())
    }

    /// The device of a mount and what it lies on.
    fn origin(&self, mount: &Mount, view: &View, depth: usize) -> (String, Vec<Part>) {
        let block = self.blocks.by_number(mount.dev);
        if let Some(part) = block.filter(|_| mount.dev.0 != 0) {
            return (self.blocks.path_of(&part), vec![part]);
        }
        if let Some(upper) = upper_of(mount).filter(|_| depth > 0) {
            let upper = Path::new(OsStr::from_bytes(&upper));
            // As the process names it; in a container that is the overlay again, and the path is
            // one of the machine.
            let own = View::default();
            let below = [view, &own].into_iter().find_map(|view| {
                let below = self.mount_at(view, upper)?;
                (below.id != mount.id).then_some((below, view))
            });
            if let Some((below, view)) = below {
                return self.origin(below, view, depth - 1);
            }
        }
        // Who may mount these may call the source what they like, a path that keeps us waiting too.
        let anybody_s = mount.fstype.starts_with("fuse") || mount.fstype == "overlay";
        let stores = !matches!(kind(&mount.fstype), FsKind::Memory | FsKind::Pseudo);
        if stores && !anybody_s {
            if let Some(part) = self.blocks.by_path(&mount.source) {
                let path = self.blocks.path_of(&part);
                return (path, self.blocks.btrfs_of(&part));
            }
        }
        let other = match server_of(mount) {
            Some(server) => format!("server {server}"),
            None => mount.source.clone(),
        };
        (mount.source.clone(), vec![Part::Other(other)])
    }
}

impl Table {
    fn mount(&self, id: u64) -> Option<&Mount> {
        self.mounts.get(*self.by_id.get(&id)?)
    }

    /// The mount with an id, unless a file with device number `dev` cannot be on it.
    fn mount_with(&self, id: u64, dev: (u32, u32)) -> Option<&Mount> {
        self.mount(id).filter(|m| !contradicts(m.dev, dev))
    }

    /// The id of the mount of a device: that of its root folder, if there is one.
    fn id_of(&self, dev: (u32, u32)) -> Option<u64> {
        let of_it = self.mounts.iter().filter(|m| m.dev == dev);
        of_it.min_by_key(|m| m.root.len()).map(|m| m.id)
    }

    fn take(&mut self, mounts: Vec<Mount>) {
        let numbered = mounts.iter().enumerate();
        self.by_id = numbered.map(|(at, m)| (m.id, at)).collect();
        self.mounts = mounts;
        let mut places = std::mem::take(&mut self.places);
        places.retain(|id, known| self.mount(*id) == Some(&known.mount));
        self.places = places;
    }
}

/// Whether a file with the device number `seen` cannot be on a mount with the number `of`. Some
/// file systems show numbers of their own, all with major number 0.
fn contradicts(of: (u32, u32), seen: (u32, u32)) -> bool {
    of.0 != 0 && seen.0 != 0 && of != seen
}

fn read_table(who: &str) -> Vec<Mount> {
    let mut text = Vec::new();
    if let Ok(file) = std::fs::File::open(format!("/proc/{who}/mountinfo")) {
        let _ = file.take(TABLE_BYTES).read_to_end(&mut text);
    }
    parse_mountinfo(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::stage::{
        keep_mounts_private, needs_root, numbers, succeed, this_thread, until, Folder, Mounted,
        Process, LIMIT,
    };
    use std::process::Command;

    /// The device below the temporary folder, as `/dev/NAME` and with its parents.
    fn below_images(places: &mut Places) -> Arc<Location> {
        let (id, dev) = numbers(&std::env::temp_dir());
        places.of_mount(this_thread(), id, dev)
    }

    fn name_of(device: &str) -> &str {
        device.strip_prefix("/dev/").expect("a path below /dev")
    }

    #[test]
    fn a_file_of_ours_lies_where_the_kernel_says() {
        let mut places = Places::new();
        let here = std::env::current_dir().expect("a folder");
        let (id, dev) = numbers(&here);
        let table = read_table("self");
        let mount = table.iter().find(|m| m.id == id).expect("its mount");
        let place = places.of_mount(std::process::id(), id, dev);
        assert_eq!(place.mount, mount.path().to_string_lossy());
        assert_eq!(place.fstype, mount.fstype);
        let by_number = places.of_dev(mount.dev);
        assert_eq!(by_number.fstype, place.fstype);
        assert_eq!(
            (&by_number.device, &by_number.parents),
            (&place.device, &place.parents)
        );
        // The second answer is the first one, and no copy.
        let again = places.of_mount(std::process::id(), id, dev);
        assert!(Arc::ptr_eq(&place, &again));
    }

    fn table(text: &str) -> Table {
        let mut table = Table {
            mounts: Vec::new(),
            by_id: HashMap::new(),
            places: HashMap::new(),
            read: Instant::now(),
            took: Duration::ZERO,
        };
        table.take(parse_mountinfo(text.as_bytes()));
        table
    }

    #[test]
    fn what_has_no_device_is_told_by_its_server_its_pool_or_what_is_below() {
        let container = View {
            namespace: 7,
            root: "/".into(),
        };
        let mut places = Places::new();
        let overlay = "overlay overlay rw,lowerdir=/l,upperdir=/var/box/up,workdir=/var/box/w";
        let outside = "1 0 0:4 / / rw - zfs tank/root rw\n2 1 0:5 / /var rw - nfs4 nas1:/var rw\n";
        let inside = format!(
            "10 0 0:6 / / rw - {overlay}\n11 10 0:6 / /other rw - {overlay}\n\
             12 10 0:8 / /ro rw - overlay overlay ro,lowerdir=/a:/b\n\
             13 10 0:9 / /fuse rw - fuse.sshfs bob@nas2:/x rw\n\
             14 10 0:9 / /hostile rw - fuse /dev/vda rw\n"
        );
        places.tables.insert(View::default(), table(outside));
        places.tables.insert(container.clone(), table(&inside));
        for (view, id, device, parents) in [
            (&View::default(), 1, "tank/root", "tank/root"),
            (&View::default(), 2, "nas1:/var", "server nas1"),
            (&container, 10, "nas1:/var", "server nas1"),
            (&container, 12, "overlay", "overlay"),
            (&container, 13, "bob@nas2:/x", "server nas2"),
            (&container, 14, "/dev/vda", "/dev/vda"),
        ] {
            let mount = places.tables[view].mount(id).expect("the mount");
            let place = places.place_of(mount, view);
            assert_eq!(
                (place.device.as_str(), place.parents.as_str()),
                (device, parents)
            );
        }
    }

    #[test]
    fn overlays_in_a_circle_come_to_an_end() {
        let mut places = Places::new();
        let text = "1 0 0:4 / /a rw - overlay one rw,upperdir=/b/x\n\
            2 0 0:5 / /b rw - overlay two rw,upperdir=/a/x\n";
        places.tables.insert(View::default(), table(text));
        let own = View::default();
        let mount = places.tables[&own].mount(1).expect("the mount");
        assert!(["one", "two"].contains(&places.place_of(mount, &own).device.as_str()));
    }

    #[test]
    fn a_loop_device_is_told_with_its_file_and_what_that_lies_on() {
        if !needs_root("a_loop_device_is_told_with_its_file_and_what_that_lies_on") {
            return;
        }
        keep_mounts_private();
        let dir = Folder::new();
        let image = dir.join("an image");
        let disk = Mounted::image("ext4", 8, &image, dir.make("mount"));
        let mut places = Places::new();
        let (id, dev) = disk.numbers("lost+found");
        let place = places.of_mount(this_thread(), id, dev);
        assert_eq!((&place.fstype, &place.mount), (&"ext4".into(), &disk.0));
        let below = below_images(&mut places).parents.clone();
        assert!(!below.is_empty());
        let want = format!("{} < {image} < {below}", name_of(&place.device));
        assert_eq!(place.parents, want);
        // Not in our own table: what /sys says of the number is left.
        let bare = places.of_dev(dev);
        assert_eq!((&bare.device, &bare.parents), (&place.device, &want));
        assert_eq!(bare.fstype, "");
        // Without an id the number alone is enough.
        assert_eq!(places.of_mount(this_thread(), 0, dev), place);
    }

    #[test]
    fn a_subvolume_of_btrfs_and_an_overlay_are_told_with_the_device_below() {
        if !needs_root("a_subvolume_of_btrfs_and_an_overlay_are_told_with_the_device_below") {
            return;
        }
        keep_mounts_private();
        let dir = Folder::new();
        let image = dir.join("image");
        let disk = Mounted::image("btrfs", 128, &image, dir.make("mount"));
        let volume = format!("{}/volume", disk.0);
        succeed("btrfs", &["subvolume", "create", &volume]);
        let mut places = Places::new();
        let (id, dev) = disk.numbers("volume");
        let place = places.of_mount(this_thread(), id, dev);
        assert_eq!((&place.fstype, &place.mount), (&"btrfs".into(), &disk.0));
        let lead = format!("{} < {image} < ", name_of(&place.device));
        assert!(place.device.starts_with("/dev/loop") && place.parents.starts_with(&lead));
        for name in ["lower", "up,per", "work"] {
            std::fs::create_dir(format!("{volume}/{name}")).expect("a folder");
        }
        let options =
            format!("lowerdir={volume}/lower,upperdir={volume}/up\\,per,workdir={volume}/work");
        let overlay = ["-t", "overlay", "-o", &options, "any-name"];
        let overlay = Mounted::new(&overlay, dir.make("overlay"));
        std::fs::write(format!("{}/file", overlay.0), "x").expect("a file");
        let (id, dev) = overlay.numbers("file");
        let seen = places.of_mount(this_thread(), id, dev);
        assert_eq!((&seen.fstype, &seen.mount), (&"overlay".into(), &overlay.0));
        assert_eq!(
            (&seen.device, &seen.parents),
            (&place.device, &place.parents)
        );
    }

    #[test]
    fn a_mount_that_only_a_process_sees_is_told_and_stays_known_when_that_is_gone() {
        if !needs_root("a_mount_that_only_a_process_sees_is_told_and_stays_known") {
            return;
        }
        let dir = Folder::new();
        let point = dir.make("a point");
        let script = "mount -t tmpfs memory \"$0\" \
            && echo ready && read line";
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", script]);
        let mut process = Process::new(command.arg(&point), Some("ready"));
        let through = format!("/proc/{}/root{point}", process.id());
        let (id, dev) = numbers(Path::new(&through));
        let mut places = Places::new();
        let want = Location {
            fstype: "tmpfs".into(),
            mount: point,
            device: "memory".into(),
            parents: "memory".into(),
        };
        assert_eq!(*places.of_mount(process.id(), id, dev), want);
        process.end();
        assert_eq!(*places.of_mount(process.id(), id, dev), want);
        // Who comes later finds nothing of it.
        assert_eq!(
            *Places::new().of_mount(process.id(), id, dev),
            Location::default()
        );
    }

    #[test]
    fn what_a_mount_point_shows_now_is_told_soon() {
        if !needs_root("what_a_mount_point_shows_now_is_told_soon") {
            return;
        }
        keep_mounts_private();
        let dir = Folder::new();
        let point = dir.make("point");
        let mut places = Places::new();
        for source in ["first", "second", "third"] {
            // The kernel gives the id of the last one again, and often its device number.
            let mounted = Mounted::new(&["-t", "tmpfs", source], point.clone());
            let (id, dev) = mounted.numbers("");
            let told = || places.of_mount(this_thread(), id, dev).device == source;
            assert!(until(LIMIT, told), "{source}");
        }
    }

    #[test]
    fn in_a_folder_made_root_the_mounts_are_told_as_seen_from_there() {
        if !needs_root("in_a_folder_made_root_the_mounts_are_told_as_seen_from_there") {
            return;
        }
        keep_mounts_private();
        let dir = Folder::new();
        let root = Mounted::new(&["--bind", "/"], dir.make("root"));
        let mounted = Mounted::new(&["-t", "tmpfs", "memory"], format!("{}/mnt", root.0));
        let mut command = Command::new("chroot");
        command.args([&root.0, "sh", "-c", "echo ready; read line"]);
        let process = Process::new(&mut command, Some("ready"));
        let (id, dev) = mounted.numbers("");
        let mut places = Places::new();
        assert_eq!(places.of_mount(this_thread(), id, dev).mount, mounted.0);
        assert_eq!(places.of_mount(process.id(), id, dev).mount, "/mnt");
    }

    #[test]
    fn of_nothing_nothing_is_known() {
        let mut places = Places::new();
        for (pid, id, dev) in [(0, 0, (0, 0)), (u32::MAX, u64::MAX, (u32::MAX, u32::MAX))] {
            assert_eq!(*places.of_mount(pid, id, dev), Location::default());
            assert_eq!(*places.of_dev(dev), Location::default());
        }
    }
}
