//! Address handles.
use std::ffi::c_int;
use std::sync::Arc;

use super::memory::null;
use super::{AhObject, PdObject, context, inherited, object};
use crate::abi::*;
use crate::soft::ah::Ah;
use crate::soft::device::limits;
use crate::soft::modify::{WantedAddress, resolve};
use crate::soft::types::Gid;
use crate::sys::errno::Errno;

/// The address that a C program gives.
pub fn wanted(attr: &ibv_ah_attr) -> WantedAddress {
    WantedAddress {
        is_global: attr.is_global != 0,
        dlid: attr.dlid,
        dgid: Gid(attr.grh.dgid.raw),
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        port: attr.port_num,
    }
}

pub unsafe extern "C" fn create_ah(c: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the library passes a live PD of urxe and readable attributes.
    unsafe {
        let pd: &PdObject = object(c);
        let node = context((*c).context).node;
        if !node.is_ours() {
            return null(Errno::EIO);
        }
        let ticket = match context((*c).context).census().ahs.enter(limits::MAX_AH, "ibv_create_ah") {
            Ok(ticket) => ticket,
            Err(e) => return null(e),
        };
        match resolve(node, &wanted(&*attr), format_args!("ibv_create_ah"), "attr") {
            Ok(address) => {
                let mut whole = ibv_ah::zeroed();
                whole.context = (*c).context;
                whole.pd = c;
                let ah = Arc::new(Ah { pd: pd.pd.id(), address });
                Box::into_raw(Box::new(AhObject { c: whole, ah, pd: pd.pd.clone(), _ticket: ticket })).cast()
            }
            Err(e) => null(e),
        }
    }
}

pub unsafe extern "C" fn destroy_ah(c: *mut ibv_ah) -> c_int {
    // SAFETY: the library passes a live AH of urxe, which this call ends.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        drop(Box::from_raw(c.cast::<AhObject>()));
    }
    0
}
