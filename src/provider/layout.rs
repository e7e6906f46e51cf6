//! How releases of rdma-core lay out what a compiled provider shares with the library.
//!
//! `verbs_context` grows at its head and `verbs_context_ops` in its middle, so both are read by the release that the
//! provider was compiled for.
use crate::abi::{OPS_NAMES, verbs_context, verbs_context_ops, verbs_qp};
use std::ffi::c_void;
use std::mem::offset_of;

/// The layouts of one release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// rdma-core's release number.
    pub release: u32,
    /// Bytes of `verbs_context`, whose last member is the `ibv_context`.
    pub context: usize,
    /// Where `verbs_qp.comp_mask` lies, which moves with every new `ibv_wr_*` function.
    pub qp_comp_mask: usize,
    /// Bytes of `ibv_port_attr`.
    pub port_attr: usize,
}

/// Slots of the ops table that came after release 36, and with which release.
const NEWER_SLOTS: [(&str, u32); 17] = [
    ("alloc_buf", 64),
    ("alloc_dmah", 59),
    ("create_comp_cntr", 65),
    ("dealloc_dmah", 59),
    ("destroy_comp_cntr", 65),
    ("dm_export_dmabuf_fd", 62),
    ("free_buf", 64),
    ("inc_comp_cntr", 65),
    ("inc_err_comp_cntr", 65),
    ("qp_attach_comp_cntr", 65),
    ("query_comp_cntr_caps", 65),
    ("query_port_speed", 62),
    ("read_comp_cntr", 65),
    ("read_err_comp_cntr", 65),
    ("reg_mr_ex", 59),
    ("set_comp_cntr", 65),
    ("set_err_comp_cntr", 65),
];

/// Slots of our own table.
const SLOTS: usize = size_of::<verbs_context_ops>() / size_of::<usize>();

impl Layout {
    /// Our own.
    pub const OURS: Layout = Layout {
        release: 65,
        context: size_of::<verbs_context>(),
        qp_comp_mask: offset_of!(verbs_qp, comp_mask),
        port_attr: size_of::<crate::abi::ibv_port_attr>(),
    };

    /// The layouts of a release under a private node; none where the two do not belong together or are not known.
    pub fn of(node: u32, release: u32) -> Option<Layout> {
        let releases = match node {
            34 => 36..=56,
            57 => 57..=58,
            59 => 59..=63,
            64 => 64..=64,
            65 => 65..=65,
            _ => return None,
        };
        if !releases.contains(&release) {
            return None;
        }
        let below_ours = |bytes| size_of::<verbs_context>() - bytes;
        let qp = offset_of!(verbs_qp, comp_mask);
        Some(Layout {
            release,
            context: match release {
                ..=58 => below_ours(48),
                59..=61 => below_ours(24),
                62..=63 => below_ours(16),
                _ => below_ours(0),
            },
            qp_comp_mask: match release {
                ..=43 => qp - 16,
                44 => qp - 8,
                _ => qp,
            },
            port_attr: if release <= 48 { 52 } else { 56 },
        })
    }

    /// How far our `verbs_context` begins before this release's.
    pub fn context_shift(&self) -> usize {
        size_of::<verbs_context>() - self.context
    }

    /// A provider's ops table as ours.
    ///
    /// # Safety
    /// `ops` must point to a table of this release.
    pub unsafe fn ops(&self, ops: *const c_void) -> verbs_context_ops {
        let mut slots = [0usize; SLOTS];
        let mut at = ops.cast::<usize>();
        for (slot, name) in slots.iter_mut().zip(OPS_NAMES) {
            if NEWER_SLOTS.iter().any(|(newer, since)| newer == name && *since > self.release) {
                continue;
            }
            // SAFETY: the caller's table has each slot of its release, in the order of ours.
            unsafe {
                *slot = at.read();
                at = at.add(1);
            }
        }
        // SAFETY: the table is nothing but optional functions, each of the size of a word; zero is none.
        unsafe { std::mem::transmute(slots) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_releases() {
        let context = |node, release| Layout::of(node, release).map(|l| l.context);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(context(34, 44), Some(648));
            assert_eq!(context(59, 61), Some(672));
            assert_eq!(context(59, 62), Some(680));
            assert_eq!(context(65, 65), Some(696));
            let comp_mask = |release| Layout::of(34, release).map(|l| l.qp_comp_mask);
            assert_eq!((comp_mask(43), comp_mask(44), comp_mask(45)), (Some(344), Some(352), Some(360)));
        }
        assert_eq!(Layout::of(65, 65), Some(Layout::OURS));
        for (node, release) in [(34, 35), (34, 57), (57, 56), (65, 66), (66, 66), (33, 33)] {
            assert_eq!(Layout::of(node, release), None);
        }
    }

    #[test]
    fn tables_have_as_many_slots_as_their_releases() {
        for (node, release, bytes) in
            [(34, 44, 608), (57, 58, 608), (59, 59, 632), (59, 62, 648), (64, 64, 664), (65, 65, 744)]
        {
            let layout = Layout::of(node, release).unwrap();
            let slots = OPS_NAMES.iter().filter(|name| {
                NEWER_SLOTS.iter().all(|(newer, since)| newer != *name || *since <= layout.release)
            });
            assert_eq!(slots.count() * size_of::<usize>(), bytes, "release {release}");
        }
    }

    #[test]
    fn slots_of_an_older_table_find_their_names() {
        let table: Vec<usize> = (1..=76).collect();
        let layout = Layout::of(34, 44).unwrap();
        // SAFETY: 76 slots, as release 44 has them; the values are never called.
        let ops = unsafe { layout.ops(table.as_ptr().cast()) };
        let number = |slot: usize| slot / 8 + 1;
        assert_eq!(ops.advise_mr.unwrap() as usize, number(0));
        assert_eq!(ops.alloc_mw.unwrap() as usize, number(16));
        assert_eq!(ops.create_counters.unwrap() as usize, number(112));
        assert_eq!(ops.get_srq_num.unwrap() as usize, number(328));
        assert_eq!(ops.post_send.unwrap() as usize, number(440));
        assert_eq!(ops.query_qp_data_in_order.unwrap() as usize, number(496));
        assert_eq!(ops.reg_mr.unwrap() as usize, number(544));
        assert_eq!(ops.unimport_pd.unwrap() as usize, number(600));
        assert!(ops.alloc_buf.is_none() && ops.reg_mr_ex.is_none() && ops.set_comp_cntr.is_none());
    }
}
