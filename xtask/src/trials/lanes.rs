//! The four ways between two hosts: MTU 1500 and 9000, IPv4 and IPv6; each between two namespaces of its own, so that what
//! waits for its peer most of the time runs beside others.
use std::{sync::mpsc, thread};

use super::netns::{CLIENT, CLIENT_6, ETHERNET, Net, SERVER, SERVER_6, gid_index};
use crate::{place::Ends, report::Ctx, run};

/// What of MTU 9000 a path of ours can use, bytes, and of 1500.
const PATH_MTUS: [(u32, u32); 2] = [(ETHERNET, 1024), (9000, 4096)];

/// How many there are. Bit 0 of a lane's number: MTU 9000; bit 1: IPv6.
pub const LANES: usize = 4;

/// One way between two hosts.
pub struct Lane {
    pub name: String,
    pub net: Net,
    pub ends: Ends,
}

/// All four, or `None` after saying why not.
pub fn lanes(ctx: &mut Ctx<'_>) -> Option<Vec<Lane>> {
    if !run::is_root() {
        ctx.skip("two namespaces", "needs root");
        return None;
    }
    let made: Result<Vec<Lane>, String> = (0..LANES).map(|n| lane(ctx, n)).collect();
    made.map_err(|why| ctx.check("making two namespaces", Err(why))).ok()
}

fn lane(ctx: &Ctx<'_>, n: usize) -> Result<Lane, String> {
    let (mtu, path_mtu) = PATH_MTUS[n & 1];
    let (family, own, peers) =
        if n & 2 == 0 { ("IPv4", SERVER, CLIENT) } else { ("IPv6", SERVER_6, CLIENT_6) };
    let net = Net::new()?;
    net.set_mtu(mtu)?;
    let [server, client] = [0, 1].map(|host| net.place(ctx.stage, host));
    let gids = [gid_index(&server, own)?, gid_index(&client, peers)?];
    let ends = Ends { server, client, host: SERVER, gids, mtu: path_mtu };
    Ok(Lane { name: format!("MTU {mtu}, {family}"), net, ends })
}

/// The lane for cell `column` of `row` of a table: rows and columns of four or more meet all of them. What asks for a
/// path MTU that its lane does not carry goes where it fits.
pub fn turn(row: usize, column: usize, args: &str) -> usize {
    let lane = (row + column) % LANES;
    if path_mtu(args) > PATH_MTUS[lane & 1].1 { lane | 1 } else { lane }
}

/// The path MTU that `-m` asks for; 0 without.
fn path_mtu(args: &str) -> u32 {
    let mut words = args.split_whitespace().skip_while(|word| *word != "-m").skip(1);
    words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Runs jobs, those of one lane one after the other and the lanes beside each other, and hands on each result as it comes.
pub fn beside<J: Send, R: Send>(
    lanes: &[Lane],
    jobs: impl IntoIterator<Item = (usize, J)>,
    job: impl Fn(&Lane, &J) -> R + Sync,
    mut record: impl FnMut(&Lane, J, R),
) {
    let mut queues: Vec<Vec<J>> = lanes.iter().map(|_| Vec::new()).collect();
    jobs.into_iter().for_each(|(lane, job)| queues[lane].push(job));
    let (done, results) = mpsc::channel();
    thread::scope(|scope| {
        for (lane, queue) in lanes.iter().zip(queues) {
            let (done, job) = (done.clone(), &job);
            scope.spawn(move || {
                for one in queue {
                    let result = job(lane, &one);
                    if done.send((lane, one, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        results.into_iter().for_each(|(lane, one, result)| record(lane, one, result));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_of_four_meet_every_lane() {
        for fixed in 0..8 {
            let along =
                |f: &dyn Fn(usize) -> usize| -> std::collections::BTreeSet<usize> { (0..4).map(f).collect() };
            assert_eq!(along(&|n| turn(n, fixed, "-n 5")).len(), LANES);
            assert_eq!(along(&|n| turn(fixed, n, "-n 5")).len(), LANES);
        }
    }

    #[test]
    fn a_path_mtu_goes_where_it_fits() {
        assert_eq!((0..4).map(|n| turn(0, n, "-c RC -m 4096")).collect::<Vec<_>>(), [1, 1, 3, 3]);
        assert_eq!((0..4).map(|n| turn(0, n, "-m 1024 -s 4096")).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}
