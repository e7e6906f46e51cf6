//! One run of a pingpong program: a server, a client, their ends and their data checks.
use std::time::Duration;

use crate::{
    place::{Ends, Place},
    run::{self, Outcome},
};

/// Both sides of a run that ended.
#[derive(Debug)]
pub struct Pair {
    pub server: Outcome,
    pub client: Outcome,
}

/// One run to make.
pub struct Run<'a> {
    /// `ibv_rc_pingpong`, or with `/` in front a program of ours that takes the same arguments.
    pub program: &'a str,
    pub server: &'a Place,
    pub client: &'a Place,
    /// Where the client finds the server.
    pub host: &'a str,
    pub server_args: Vec<String>,
    pub client_args: Vec<String>,
    pub limit: Duration,
}

impl<'a> Run<'a> {
    /// `program` with the same space-separated `args` on both sides, over 127.0.0.1.
    pub fn new(program: &'a str, server: &'a Place, client: &'a Place, args: &str) -> Run<'a> {
        let args: Vec<String> = args.split_whitespace().map(String::from).collect();
        let limit = Duration::from_secs(30);
        Run {
            program,
            server,
            client,
            host: "127.0.0.1",
            server_args: args.clone(),
            client_args: args,
            limit,
        }
    }
    /// The same between two ends, each with its own GID.
    pub fn over(program: &'a str, ends: &'a Ends, args: &str) -> Run<'a> {
        let [server, client] = ends.gids.map(|index| format!("-g {index}"));
        Run::new(program, &ends.server, &ends.client, args).sides(&server, &client).to(ends.host)
    }
    /// More arguments for one side or the other.
    pub fn sides(mut self, server: &str, client: &str) -> Self {
        self.server_args.extend(server.split_whitespace().map(String::from));
        self.client_args.extend(client.split_whitespace().map(String::from));
        self
    }
    /// Another limit.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
    /// Another address for the client.
    pub fn to(mut self, host: &'a str) -> Self {
        self.host = host;
        self
    }
    /// Runs both sides; `Err` only when the harness itself could not.
    pub fn run(&self) -> Result<Pair, String> {
        let port = run::port();
        let port_arg = ["-p".to_string(), port.to_string()];
        let mut server =
            run::spawn(self.server.command(self.program, port_arg.iter().chain(&self.server_args)))?;
        server.listens(port, Duration::from_secs(10))?;
        let host = [self.host.to_string()];
        let args = port_arg.iter().chain(&self.client_args).chain(&host);
        let client = run::spawn(self.client.command(self.program, args))?;
        // When one side fails, the other need not be waited for as long.
        let client = client.finish(self.limit);
        let patience = if client.ok() { Duration::from_secs(5) } else { Duration::from_secs(2) };
        Ok(Pair { server: server.finish(patience), client })
    }
    /// Both sides must exit with 0, print their result and find no invalid data.
    pub fn good(&self) -> Result<Pair, String> {
        let pair = self.run()?;
        for (side, outcome) in [("server", &pair.server), ("client", &pair.client)] {
            let text = format!("{}{}", outcome.out, outcome.err);
            if !outcome.ok() || text.contains("invalid data") || text.contains("panicked") {
                let other = if side == "server" { &pair.client } else { &pair.server };
                return Err(format!("{side}: {outcome}\n    other side: {other}"));
            }
        }
        if self.program.starts_with("ibv_") && !self.program.contains("xsrq") {
            for outcome in [&pair.server, &pair.client] {
                if !outcome.out.contains("usec/iter") {
                    return Err(format!("no result line: {outcome}"));
                }
            }
        }
        Ok(pair)
    }
}
