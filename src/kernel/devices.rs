//! The kernel's devices as this process has seen them, so that each keeps its identity and the list its order.
use super::discover::{self, Places, Uverbs};
use super::plugin::{self, load};
use super::rxe;
use crate::provider::Found;
use crate::sys::lock::Lock;
use crate::sys::{log, settings};

/// Who serves a device.
#[derive(Clone, Copy)]
pub enum Served {
    /// Our own provider.
    Native,
    /// A compiled one.
    Plugin(plugin::Served),
}

/// A device that was seen at some time.
struct Seen {
    device: Uverbs,
    found: Found,
    served: Option<Served>,
}

struct Table {
    /// A device's token is its place.
    seen: Vec<Seen>,
    /// Tokens of the devices present, in the order of the list.
    order: Vec<usize>,
}

static TABLE: Lock<Table> = Lock::new(Table { seen: Vec::new(), order: Vec::new() });

/// The devices present now that some provider serves. Those of the first look are in the kernel's order; what comes later
/// stands in front.
pub fn list() -> Vec<Found> {
    let Ok(present) = discover::devices(&Places::system()) else { return Vec::new() };
    let mut table = TABLE.lock();
    table.update(present);
    table.serve();
    let unserved = |table: &Table| {
        table
            .order
            .iter()
            .filter(|&&t| table.seen[t].served.is_none())
            .map(|&t| table.seen[t].device.driver)
            .collect::<Vec<_>>()
    };
    let left = unserved(&table);
    if !left.is_empty() {
        load::for_drivers(&left);
        table.serve();
        if !unserved(&table).is_empty() {
            load::all();
            table.serve();
        }
    }
    for &token in &table.order {
        let seen = &table.seen[token];
        if seen.served.is_none() {
            log::explain(format_args!(
                "ibv_get_device_list: no provider serves {} (driver id {}, modalias {:?})",
                seen.device.name,
                seen.device.driver,
                discover::modalias(&seen.device)
            ));
            log::warn(format_args!("no userspace device-specific driver found for {}", seen.device.name));
        }
    }
    let served = table.order.iter().map(|&token| &table.seen[token]);
    served.filter(|seen| seen.served.is_some()).map(|seen| seen.found.clone()).collect()
}

/// A device by its token, and who serves it.
pub fn get(token: usize) -> Option<(Uverbs, Served)> {
    let table = TABLE.lock();
    let seen = table.seen.get(token)?;
    Some((seen.device.clone(), seen.served?))
}

/// The token of the device whose node has this number.
pub fn by_number(number: u64) -> Option<usize> {
    let table = TABLE.lock();
    table.order.iter().copied().find(|&token| table.seen[token].device.number == number)
}

impl Table {
    /// Takes in what a look has found.
    fn update(&mut self, present: Vec<Uverbs>) {
        let mut tokens = Vec::new();
        for device in present {
            let known = self.seen.iter().position(|seen| seen.device.is(&device));
            tokens.push(known.unwrap_or_else(|| {
                let token = self.seen.len();
                let found = plugin::found(&device, token);
                self.seen.push(Seen { device, found, served: None });
                token
            }));
        }
        let mut order: Vec<usize> = tokens.iter().copied().filter(|t| !self.order.contains(t)).collect();
        order.extend(self.order.iter().copied().filter(|t| tokens.contains(t)));
        self.order = order;
    }

    /// Lets our own provider, then the registered ones, have what nobody serves yet. `ANYVERBS_PROVIDER=plugin` leaves ours out.
    fn serve(&mut self) {
        let own = settings::choose("ANYVERBS_PROVIDER").is_none();
        for &token in &self.order {
            let seen = &mut self.seen[token];
            if seen.served.is_none() {
                seen.served = if own && rxe::serves(&seen.device) {
                    Some(Served::Native)
                } else {
                    plugin::serve(&seen.device, &seen.found).map(Served::Plugin)
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, index: i32) -> Uverbs {
        Uverbs { name: name.into(), node: format!("uverbs{index}"), index, ..Uverbs::default() }
    }

    #[test]
    fn later_devices_stand_in_front_and_all_keep_their_tokens() {
        let mut table = Table { seen: Vec::new(), order: Vec::new() };
        table.update(vec![device("a", 0), device("b", 1)]);
        assert_eq!(table.order, [0, 1]);
        table.update(vec![device("a", 0), device("b", 1), device("c", 2), device("d", 3)]);
        assert_eq!(table.order, [2, 3, 0, 1]);
        table.update(vec![device("b", 1), device("d", 3)]);
        assert_eq!(table.order, [3, 1]);
        // The same name with another index is another device.
        table.update(vec![device("a", 7), device("b", 1), device("d", 3)]);
        assert_eq!(table.order, [4, 3, 1]);
        assert_eq!(table.seen.len(), 5);
    }
}
