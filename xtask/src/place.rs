//! Where and as whom a program runs with our library: by path or by preload, as root or not, in a namespace or a root; and
//! two such places that talk.
use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{run, stage};

/// How the program gets our library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// `LD_LIBRARY_PATH` names the folder with the `.so.1` link.
    Path,
    /// `LD_PRELOAD` names the file, and nothing else is set.
    Preload,
    /// Not at all: it takes the distribution's.
    System,
}

/// As whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// As we are.
    Me,
    /// As `nobody`, without any group or capability; needs root.
    Nobody,
}

/// Two places whose programs talk to each other.
#[derive(Clone, Debug)]
pub struct Ends {
    pub server: Place,
    pub client: Place,
    /// Where the client finds the server by TCP.
    pub host: &'static str,
    /// What each side sends from: indices into the GID tables of server and client.
    pub gids: [usize; 2],
    /// The largest path MTU between them, bytes.
    pub mtu: u32,
}

impl Ends {
    /// Both sides in one place of this host.
    pub fn both(place: &Place) -> Ends {
        let [server, client] = [place.clone(), place.clone()];
        Ends { server, client, host: "127.0.0.1", gids: [0, 0], mtu: 4096 }
    }
}

/// One place to run programs in.
#[derive(Clone, Debug)]
pub struct Place {
    pub via: Via,
    pub user: User,
    /// Put before the command: `ip netns exec X`, `chroot D`, ...
    pub wrap: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The folder with `lib` and `bin`, as the program sees it.
    folder: PathBuf,
}

impl Place {
    /// With the library in `folder`/lib.
    pub fn new(folder: &Path, via: Via, user: User) -> Place {
        Place { via, user, wrap: Vec::new(), env: Vec::new(), folder: folder.to_path_buf() }
    }
    /// The folder with the `.so.1` link.
    pub fn lib(&self) -> PathBuf {
        self.folder.join("lib")
    }
    /// One of our own C programs.
    pub fn own(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }
    /// The same place with one more variable.
    pub fn with_env(mut self, name: &str, value: &str) -> Place {
        self.env.push((name.to_string(), value.to_string()));
        self
    }
    /// The same place, the library by another way.
    pub fn by(mut self, via: Via) -> Place {
        self.via = via;
        self
    }
    /// The same place, as another user.
    pub fn of(mut self, user: User) -> Place {
        self.user = user;
        self
    }
    /// The same place, reached through `wrap`.
    pub fn inside(mut self, wrap: &[&str]) -> Place {
        self.wrap = wrap.iter().map(|s| s.to_string()).collect();
        self
    }
    /// A program by name, or with a `/` in front of a name one of our own C programs.
    pub fn command<S: AsRef<str>>(&self, program: &str, args: impl IntoIterator<Item = S>) -> Command {
        let lib = self.lib();
        let mut words = self.wrap.clone();
        if self.user == User::Nobody {
            words.extend(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(String::from));
            words.extend(["--inh-caps=-all", "--bounding-set=-all"].map(String::from));
        }
        words.push("env".to_string());
        words.extend(self.env.iter().map(|(name, value)| format!("{name}={value}")));
        match self.via {
            Via::Path => words.push(format!("LD_LIBRARY_PATH={}", lib.display())),
            Via::Preload => words.push(format!("LD_PRELOAD={}", lib.join(stage::SONAME).display())),
            Via::System => {}
        }
        match program.strip_prefix('/') {
            Some(own) => words.push(self.own(own).display().to_string()),
            None => words.push(program.to_string()),
        }
        words.extend(args.into_iter().map(|a| a.as_ref().to_string()));
        let mut cmd = run::command(&words[0], &words[1..]);
        cmd.current_dir("/");
        for name in ["LD_LIBRARY_PATH", "LD_PRELOAD"] {
            cmd.env_remove(name);
        }
        cmd
    }
    /// `root by path`, for names of checks.
    pub fn label(&self) -> String {
        let who = match self.user {
            User::Me if run::is_root() => "root",
            User::Me => "user",
            User::Nobody => "nobody",
        };
        let how = match self.via {
            Via::Path => "path",
            Via::Preload => "preload",
            Via::System => "distribution",
        };
        format!("{who} by {how}")
    }
}
