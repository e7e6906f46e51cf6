//! Multicast groups of a process: which of its UD QPs are attached to which group.
//!
//! A message to a group goes to every QP of this host that is attached: to those of this process from here, to those of
//! others over wires (`link::wires::places`). The sender's own QP gets it too if it is attached, unless it was created
//! with `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`. To other hosts it goes once, to the IP group (`link::udp`).
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::device::limits;
use super::qp::Qp;
use super::types::Gid;
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;

/// The groups that QPs of this process are attached to.
#[derive(Debug, Default)]
pub struct Groups {
    members: Lock<HashMap<Gid, Vec<Member>>>,
    attachments: AtomicU32,
}

#[derive(Debug)]
struct Member {
    qp: Arc<Qp>,
    /// As given: a detach must name the same.
    lid: u16,
}

impl Groups {
    /// Attaches a QP. Once more the same changes nothing.
    ///
    /// # Errors
    /// ENOMEM at the device's limits.
    pub fn attach(&self, qp: &Arc<Qp>, group: Gid, lid: u16) -> Result<(), Errno> {
        let mut groups = self.members.lock();
        let full = |what: &str, max: u32| {
            explain(format_args!("ibv_attach_mcast qp={:?} gid={group:?}: {what} ({max})", qp.num));
            Errno::ENOMEM
        };
        if !groups.contains_key(&group) && groups.len() >= limits::MAX_MCAST_GRP as usize {
            return Err(full("all groups are in use", limits::MAX_MCAST_GRP));
        }
        let members = groups.entry(group).or_default();
        if members.iter().any(|m| m.qp.num == qp.num) {
            return Ok(());
        }
        if members.len() >= limits::MAX_MCAST_QP_ATTACH as usize {
            return Err(full("the group has all the QPs that it may have", limits::MAX_MCAST_QP_ATTACH));
        }
        if self.attachments.load(Ordering::Acquire) >= limits::MAX_TOTAL_MCAST_QP_ATTACH {
            if members.is_empty() {
                groups.remove(&group);
            }
            return Err(full("no more QPs may be in groups", limits::MAX_TOTAL_MCAST_QP_ATTACH));
        }
        members.push(Member { qp: qp.clone(), lid });
        qp.attached.fetch_add(1, Ordering::AcqRel);
        self.attachments.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Ends that.
    ///
    /// # Errors
    /// EINVAL where the QP is not attached to the group, or with another LID.
    pub fn detach(&self, qp: &Qp, group: Gid, lid: u16) -> Result<(), Errno> {
        let mut groups = self.members.lock();
        let members = groups.get_mut(&group);
        let at = members.as_ref().and_then(|m| m.iter().position(|m| m.qp.num == qp.num && m.lid == lid));
        let (Some(members), Some(at)) = (members, at) else {
            explain(format_args!(
                "ibv_detach_mcast qp={:?} gid={group:?} lid={lid}: it is not attached",
                qp.num
            ));
            return Err(Errno::EINVAL);
        };
        members.remove(at);
        if members.is_empty() {
            groups.remove(&group);
        }
        qp.attached.fetch_sub(1, Ordering::AcqRel);
        self.attachments.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    /// The groups that QPs of this process are in.
    pub fn all(&self) -> Vec<Gid> {
        self.members.lock().keys().copied().collect()
    }

    /// The QPs of this process in the group.
    pub fn members(&self, group: Gid) -> Vec<Arc<Qp>> {
        if self.attachments.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.members.lock().get(&group).map_or_else(Vec::new, |m| m.iter().map(|m| m.qp.clone()).collect())
    }
}
