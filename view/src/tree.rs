//! The view on disk: a folder of this process alone, made when a path of the view is first looked at and removed at exit. What a
//! killed process left is removed by the next one of the same user.
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::{CStr, CString, OsString, c_char, c_int},
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{PermissionsExt, symlink},
        },
    },
    path::{Path, PathBuf},
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering},
};

use anyverbs_counters::{Values, scan};

use crate::{
    content::{self, Entry},
    path,
    verbs::{self, Device},
};

/// What a path of the view stands for.
pub struct Seen {
    /// The path to hand to libc.
    pub real: CString,
    /// As the program wrote it, made plain.
    pub shown: Vec<u8>,
    /// The folder of the view.
    pub root: PathBuf,
}

/// Translates the path of a call with `dirfd`; `None` where it is none of the view's, or there is nothing to show. errno stays.
///
/// # Safety
/// `given` must be null or a C string.
pub unsafe fn look(dirfd: c_int, given: *const c_char) -> Option<Seen> {
    // SAFETY: the caller vouches for the string.
    let text = if given.is_null() { &[] } else { unsafe { CStr::from_ptr(given) }.to_bytes() };
    if !path::may_match(text) || INSIDE.get() || GONE.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: errno is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    let _inside = Inside::enter();
    // SAFETY: as above.
    let mut seen = unsafe { path::absolute(dirfd, given) }.and_then(find);
    // A link that is named with a slash behind it is followed.
    if let Some(seen) = &mut seen
        && (text.ends_with(b"/") || text.ends_with(b"/."))
    {
        seen.real = CString::new([seen.real.as_bytes(), b"/"].concat()).unwrap_or_default();
    }
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = errno };
    seen
}

/// The tree of one process.
struct Tree {
    pid: i32,
    root: PathBuf,
    /// The embedded devices, in order.
    devices: Vec<String>,
    entries: BTreeMap<String, Entry>,
    /// All files, then all folders, the deepest first.
    removal: Vec<CString>,
    /// Its lock on the folder says that the folder is in use.
    _lock: OwnedFd,
}

thread_local! {
    /// This thread is at work for the view: its calls are not for the program.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The tree, also one that a parent made before it forked.
static TREE: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());
/// The process whose thread is at work on [`TREE`], or 0. A child does not wait for a thread that only its parent has.
static BUSY: AtomicI32 = AtomicI32::new(0);
/// The process is exiting and the tree has been removed.
static GONE: AtomicBool = AtomicBool::new(false);

struct Inside;

impl Inside {
    fn enter() -> Inside {
        INSIDE.set(true);
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Held while [`TREE`] is used.
struct Busy;

impl Busy {
    fn enter() -> Busy {
        let me = own_pid();
        loop {
            let now = BUSY.load(Ordering::Relaxed);
            let free = now != me;
            if free && BUSY.compare_exchange(now, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Busy;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.store(0, Ordering::Release);
    }
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

fn find(shown: Vec<u8>) -> Option<Seen> {
    let climbs = shown.windows(3).any(|three| three == b"/..");
    if !path::is_ours(&shown) && !climbs {
        return None;
    }
    let holds = |part: &[u8]| shown.windows(part.len()).any(|window| window == part);
    let (is_below_ports, is_counter) = (holds(b"/ports"), holds(b"counters"));
    let _busy = Busy::enter();
    let mut tree = TREE.load(Ordering::Acquire);
    // SAFETY: trees are never freed, and the lock is held.
    let usable = unsafe { tree.as_ref() }.is_some_and(|t| t.pid == own_pid() && t.root.join("sys").exists());
    if !usable {
        tree = Box::into_raw(Box::new(Tree::new()?));
        TREE.store(tree, Ordering::Release);
    } else if is_below_ports && !is_counter {
        // SAFETY: as above.
        unsafe { &mut *tree }.refresh();
    }
    if is_below_ports && is_counter {
        // SAFETY: as above.
        unsafe { &mut *tree }.refresh_counters();
    }
    // SAFETY: as above.
    let tree = unsafe { &*tree };
    let real = match path::node(&shown) {
        Some(node) if tree.has_node(node) => c"/dev/null".to_owned(),
        _ => path::translate(&tree.root, &shown)?,
    };
    Some(Seen { real, shown, root: tree.root.clone() })
}

impl Tree {
    /// Asks libibverbs and writes the tree; `None` where there is nothing to show or nowhere to write.
    fn new() -> Option<Tree> {
        let devices = verbs::devices();
        if devices.is_empty() {
            return None;
        }
        let base = places().find(|place| place.is_dir())?;
        sweep(&base);
        let (root, lock) = places().find_map(|place| make_folder(&place).ok())?;
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        if !REGISTERED.swap(true, Ordering::Relaxed) {
            // SAFETY: the function stays loaded: the library is linked with `-z nodelete`.
            unsafe { libc::atexit(at_exit) };
        }
        let mut tree = Tree {
            pid: own_pid(),
            root,
            devices: Vec::new(),
            entries: BTreeMap::new(),
            removal: Vec::new(),
            _lock: lock,
        };
        tree.fill(&devices);
        Some(tree)
    }

    /// Writes what has changed since: addresses come and go.
    fn refresh(&mut self) {
        let devices = verbs::devices();
        if !devices.is_empty() {
            self.fill(&devices);
        }
    }

    /// Counters stay as they were last looked at.
    fn fill(&mut self, devices: &[Device]) {
        self.devices = devices.iter().map(|device| device.name.clone()).collect();
        let mut all = content::entries(devices);
        for (path, entry) in self.devices.iter().flat_map(|name| content::counters(name, &Values::default()))
        {
            let known = self.entries.get(&path).cloned();
            all.insert(path, known.unwrap_or(entry));
        }
        self.write(all);
    }

    /// Writes the counters as they are now.
    fn refresh_counters(&mut self) {
        for (path, entry) in self.counters() {
            if self.entries.get(&path) != Some(&entry) && put(&self.file(&path), &entry).is_ok() {
                self.entries.insert(path, entry);
            }
        }
    }

    /// The counters of each port: as those of a real one they are what all processes have done, here of this user and in this
    /// network namespace.
    fn counters(&self) -> Vec<(String, Entry)> {
        let own = scan::network(std::process::id());
        let mut processes = scan::processes();
        processes.retain(|process| process.netns == own);
        let ports = || processes.iter().flat_map(|process| &process.ports);
        let of = |(index, name): (usize, &String)| {
            let mut sum = Values::default();
            ports().filter(|port| port.index == index).for_each(|port| sum += &port.values);
            content::counters(name, &sum)
        };
        self.devices.iter().enumerate().flat_map(of).collect()
    }

    /// Makes the folder hold exactly `new`. What cannot be written is missing in the view.
    fn write(&mut self, new: BTreeMap<String, Entry>) {
        for (path, entry) in &self.entries {
            if new.get(path) != Some(entry) && !matches!(entry, Entry::File(_)) || !new.contains_key(path) {
                let _ = fs::remove_file(self.file(path));
            }
        }
        self.removal = self.in_order(new.keys().chain(self.entries.keys()));
        for (path, entry) in &new {
            if self.entries.get(path) != Some(entry) {
                let _ = put(&self.file(path), entry);
            }
        }
        self.entries = new;
    }

    /// What to remove when `paths` are in the tree, in the order in which it works.
    fn in_order<'a>(&self, paths: impl Iterator<Item = &'a String>) -> Vec<CString> {
        let files: BTreeSet<PathBuf> = paths.map(|path| self.file(path)).collect();
        let above = files.iter().flat_map(|file| file.ancestors().skip(1));
        let folders: BTreeSet<&Path> = above.filter(|folder| folder.starts_with(&self.root)).collect();
        let all = files.iter().map(PathBuf::as_path).chain(folders.iter().rev().copied());
        all.filter_map(|path| CString::new(path.as_os_str().as_bytes()).ok()).collect()
    }

    fn file(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether a device of ours has this character device.
    fn has_node(&self, node: &[u8]) -> bool {
        let key = std::str::from_utf8(node).map(|node| format!("{}/{node}", content::NODES));
        key.is_ok_and(|key| self.entries.get(&key) == Some(&Entry::Link("/dev/null".into())))
    }
}

/// Writes one entry; a file is replaced in one step, for readers in other threads.
fn put(path: &Path, entry: &Entry) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match entry {
        Entry::Link(to) => symlink(to, path),
        Entry::File(text) => {
            let new = path.with_extension("new");
            fs::write(&new, text)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o444))?;
            fs::rename(&new, path)
        }
    }
}

/// Where the folder can lie, the best first.
fn places() -> impl Iterator<Item = PathBuf> {
    let named = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    named.chain(["/tmp", "/dev/shm", "/var/tmp"].map(PathBuf::from)).filter(|place| place.is_absolute())
}

fn prefix() -> String {
    // SAFETY: geteuid has no preconditions.
    format!("anyverbs-view-{}-", unsafe { libc::geteuid() })
}

/// A new folder in `place` for this user alone, and the lock on it.
fn make_folder(place: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    let template = place.join(format!("{}{}-XXXXXX", prefix(), own_pid()));
    let mut template = CString::new(template.into_os_string().into_vec())?.into_bytes_with_nul();
    // SAFETY: the template ends in NUL and is changed in place.
    if unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    template.pop();
    let root = fs::canonicalize(OsString::from_vec(template))?;
    let lock = OwnedFd::from(fs::File::open(&root)?);
    // SAFETY: a descriptor of ours.
    unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
    Ok((root, lock))
}

/// Removes the folders that processes of this user left when they were killed.
fn sweep(place: &Path) {
    let prefix = prefix();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(&prefix).and_then(|rest| rest.split('-').next()?.parse::<i32>().ok());
        let Some(pid) = pid.filter(|pid| *pid > 0) else { continue };
        // SAFETY: signal 0 only asks. Before an exec a process of this very pid may have left one.
        let alive = pid != own_pid() && unsafe { libc::kill(pid, 0) } == 0;
        // A process in another pid namespace holds the lock.
        let Ok(folder) = fs::File::open(entry.path()) else { continue };
        // SAFETY: a descriptor of ours.
        let unused = unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
        if !alive && unused {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

extern "C" fn at_exit() {
    remove();
}

/// Removes the tree of this process; a child that never looked at the view has none. May be called in a signal handler: nothing is
/// allocated, and a tree at which someone is at work stays for the next process to sweep.
pub fn remove() {
    // SAFETY: trees are never freed, and its process never changes.
    let ours = unsafe { TREE.load(Ordering::Acquire).as_ref() }.is_some_and(|tree| tree.pid == own_pid());
    if !ours || BUSY.compare_exchange(0, own_pid(), Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let _busy = Busy;
    if GONE.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: as above, and the lock is held.
    for path in unsafe { &(*TREE.load(Ordering::Acquire)).removal } {
        // SAFETY: a C string; a folder is not unlinked, and a file is no folder.
        unsafe {
            if libc::unlink(path.as_ptr()) != 0 {
                libc::rmdir(path.as_ptr());
            }
        }
    }
}
