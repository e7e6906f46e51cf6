//! Flow rules, flow actions and counters.
use super::write::{self, Extended, number};
use super::{Ioctl, Way, code, forgive, object};
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr;

const FLOW_DESTROY: u16 = 0;
const ESP_CREATE: u16 = 0;
const ACTION_DESTROY: u16 = 1;
const ESP_MODIFY: u16 = 2;
const COUNTERS_CREATE: u16 = 0;
const COUNTERS_DESTROY: u16 = 1;
const COUNTERS_READ: u16 = 2;

/// How a spec lies in the application's memory and in the kernel's: where value and mask begin, and their lengths. In the
/// kernel they always begin at byte 8.
struct Shape {
    value: usize,
    own_len: usize,
    kernel_len: usize,
}

fn shape(kind: u32) -> Option<Shape> {
    let same = |len| Some(Shape { value: 8, own_len: len, kernel_len: len });
    match kind & !IBV_FLOW_SPEC_INNER {
        IBV_FLOW_SPEC_ETH => Some(Shape { value: 6, own_len: 16, kernel_len: 16 }),
        // The kernel has one form for both, with the longer filter.
        IBV_FLOW_SPEC_IPV4 => Some(Shape { value: 8, own_len: 8, kernel_len: 12 }),
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => Some(Shape { value: 6, own_len: 4, kernel_len: 4 }),
        IBV_FLOW_SPEC_IPV4_EXT => same(12),
        IBV_FLOW_SPEC_IPV6 => same(40),
        IBV_FLOW_SPEC_ESP | IBV_FLOW_SPEC_GRE => same(8),
        IBV_FLOW_SPEC_VXLAN_TUNNEL | IBV_FLOW_SPEC_MPLS => same(4),
        _ => None,
    }
}

/// Appends a spec as the kernel has it; gives its length in the application's memory.
///
/// # Safety
/// `spec` must be a spec as long as it says, and objects that it names live.
unsafe fn convert(spec: *const ibv_flow_spec_hdr, to: &mut Vec<u8>) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for it; what is read lies within the size just checked.
    unsafe {
        let (mut kind, size) = ((*spec).r#type, usize::from((*spec).size));
        let at = spec.cast::<u8>();
        let mut body = Vec::new();
        if let Some(Shape { value, own_len, kernel_len }) = shape(kind) {
            if size < value + 2 * own_len {
                return Err(Errno::EINVAL);
            }
            for start in [value, value + own_len] {
                body.extend(std::slice::from_raw_parts(at.add(start), own_len));
                body.resize(body.len() + kernel_len - own_len, 0);
            }
            if kind & !IBV_FLOW_SPEC_INNER == IBV_FLOW_SPEC_IPV4_EXT {
                kind = IBV_FLOW_SPEC_IPV4 | kind & IBV_FLOW_SPEC_INNER;
            }
        } else {
            let word = match kind {
                IBV_FLOW_SPEC_ACTION_DROP => None,
                IBV_FLOW_SPEC_ACTION_TAG => Some((*spec.cast::<ibv_flow_spec_action_tag>()).tag_id),
                IBV_FLOW_SPEC_ACTION_HANDLE => Some(
                    (*(*spec.cast::<ibv_flow_spec_action_handle>()).action.cast::<verbs_flow_action>())
                        .handle,
                ),
                IBV_FLOW_SPEC_ACTION_COUNT => Some(
                    (*(*spec.cast::<ibv_flow_spec_counter_action>()).counters.cast::<verbs_counters>())
                        .handle,
                ),
                _ => return Err(Errno::EINVAL),
            };
            if let Some(word) = word {
                body.extend(word.to_ne_bytes());
                body.extend([0; 4]);
            }
        }
        to.extend(kind.to_ne_bytes());
        to.extend((8 + body.len() as u16).to_ne_bytes());
        to.extend([0; 2]);
        to.extend(body);
        Ok(size)
    }
}

/// # Safety
/// `qp` live; flow, attributes with their specs, and the provider's tail valid.
pub unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    flow: *mut ibv_flow,
    attr: *mut ibv_flow_attr,
    tail: *const c_void,
    tail_size: usize,
) -> c_int {
    // SAFETY: the caller's promises are this function's.
    code(unsafe { add_flow(qp, flow, &*attr, tail, tail_size) })
}

/// # Safety
/// As `create_flow`.
unsafe fn add_flow(
    qp: *mut ibv_qp,
    flow: *mut ibv_flow,
    a: &ibv_flow_attr,
    tail: *const c_void,
    tail_size: usize,
) -> Result<(), Errno> {
    if a.comp_mask != 0 {
        return Err(Errno::EINVAL);
    }
    let mut specs = Vec::new();
    let mut at = ptr::from_ref(a).wrapping_add(1).cast::<ibv_flow_spec_hdr>();
    for _ in 0..a.num_of_specs {
        // SAFETY: the specs follow the attributes, each as long as it says.
        at = unsafe { at.wrapping_byte_add(convert(at, &mut specs)?) };
    }
    let head = size_of::<Extended<ib_uverbs_create_flow>>();
    let core = (head + specs.len()).next_multiple_of(8);
    let total = core + tail_size;
    // Words of eight bytes, so that the request is aligned.
    let mut memory = vec![0u64; total.div_ceil(8)];
    let request = memory.as_mut_ptr().cast::<Extended<ib_uverbs_create_flow>>();
    let mut made = ib_uverbs_create_flow_resp::zeroed();
    let room = size_of_val(&made);
    // SAFETY: the memory has room for head, specs and tail; the caller vouches for the rest.
    unsafe {
        (*request).core = ib_uverbs_create_flow {
            comp_mask: 0,
            qp_handle: (*qp).handle,
            r#type: a.r#type,
            size: specs.len() as u16,
            priority: a.priority,
            num_of_specs: a.num_of_specs,
            reserved: [0; 2],
            port: a.port,
            flags: a.flags,
        };
        request.byte_add(head).cast::<u8>().copy_from_nonoverlapping(specs.as_ptr(), specs.len());
        if tail_size > 0 {
            request.byte_add(core).cast::<u8>().copy_from_nonoverlapping(tail.cast(), tail_size);
        }
        let to = (&raw mut made).cast();
        write::extended((*qp).context, number::CREATE_FLOW, request, core, total, to, room, room)?;
        (*flow).context = (*qp).context;
        (*flow).handle = made.flow_handle;
    }
    Ok(())
}

/// # Safety
/// `flow` live.
pub unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    let mut ioctl = Ioctl::new(object::FLOW, FLOW_DESTROY);
    // SAFETY: the provider gives a live flow.
    code(unsafe {
        let (ctx, handle) = ((*flow).context, (*flow).handle);
        ioctl.handle(0, handle);
        let done = ioctl.try_send(ctx).and_then(|way| match way {
            Way::Done => Ok(()),
            Way::Write => {
                let mut request = Extended::of(ib_uverbs_ex_destroy { comp_mask: 0, handle });
                let size = size_of_val(&request);
                write::extended(ctx, number::DESTROY_FLOW, &mut request, size, size, ptr::null_mut(), 0, 0)
            }
        });
        done.or_else(forgive)
    })
}

/// The attributes that making and changing an ESP action share; `handle` puts the first.
///
/// # Safety
/// `a` and all it points to must be valid until the command is sent.
unsafe fn esp(ioctl: &mut Ioctl, a: &ibv_flow_action_esp_attr) {
    const WITH_ESN: u32 = 1;
    /// Bytes of the kernel's `ib_uverbs_flow_action_esp` and `_esp_encap`.
    const ESP: usize = 24;
    // SAFETY: the caller vouches for all.
    unsafe {
        if a.comp_mask & WITH_ESN != 0 {
            ioctl.value(2, a.esn);
        }
        if !a.esp_attr.is_null() {
            ioctl.bytes_in(1, a.esp_attr.cast(), ESP);
        }
        if !a.keymat_ptr.is_null() {
            ioctl.bytes_in(3, a.keymat_ptr, a.keymat_len.into());
            ioctl.chosen(a.keymat_proto);
        }
        if !a.replay_ptr.is_null() || a.replay_len > 0 {
            ioctl.bytes_in(4, a.replay_ptr, a.replay_len.into());
            ioctl.chosen(a.replay_proto);
        }
        if !a.esp_encap.is_null() {
            ioctl.bytes_in(5, a.esp_encap.cast(), ESP);
        }
    }
}

/// # Safety
/// `ctx` live; attributes and action valid, `driver` null or a live command buffer.
pub unsafe extern "C" fn create_flow_action_esp(
    ctx: *mut ibv_context,
    attr: *mut ibv_flow_action_esp_attr,
    action: *mut verbs_flow_action,
    driver: *mut ibv_command_buffer,
) -> c_int {
    /// `IBV_FLOW_ACTION_ESP`.
    const ESP_ACTION: u32 = 1;
    let mut ioctl = Ioctl::new(object::FLOW_ACTION, ESP_CREATE);
    let place = ioctl.new_handle(0);
    // SAFETY: the provider gives a live context, attributes and a new action.
    code(unsafe {
        esp(&mut ioctl, &*attr);
        ioctl.link(driver);
        ioctl.send_only(ctx).map(|()| {
            (*action).action.context = ctx;
            (*action).handle = ioctl.handle_at(place);
            (*action).r#type = ESP_ACTION;
        })
    })
}

/// # Safety
/// `action` live; attributes valid, `driver` null or a live command buffer.
pub unsafe extern "C" fn modify_flow_action_esp(
    action: *mut verbs_flow_action,
    attr: *mut ibv_flow_action_esp_attr,
    driver: *mut ibv_command_buffer,
) -> c_int {
    let mut ioctl = Ioctl::new(object::FLOW_ACTION, ESP_MODIFY);
    // SAFETY: the provider gives a live action and attributes.
    code(unsafe {
        ioctl.handle(0, (*action).handle);
        esp(&mut ioctl, &*attr);
        ioctl.link(driver);
        ioctl.send_only((*action).action.context)
    })
}

/// # Safety
/// `action` live.
pub unsafe extern "C" fn destroy_flow_action(action: *mut verbs_flow_action) -> c_int {
    let mut ioctl = Ioctl::new(object::FLOW_ACTION, ACTION_DESTROY);
    // SAFETY: the provider gives a live action.
    code(unsafe {
        ioctl.handle(0, (*action).handle);
        ioctl.send_only((*action).action.context).or_else(forgive)
    })
}

/// # Safety
/// `ctx` live; counters valid for writes, `link` null or a live command buffer.
pub unsafe extern "C" fn create_counters(
    ctx: *mut ibv_context,
    _attr: *mut ibv_counters_init_attr,
    counters: *mut verbs_counters,
    link: *mut ibv_command_buffer,
) -> c_int {
    let mut ioctl = Ioctl::new(object::COUNTERS, COUNTERS_CREATE);
    let place = ioctl.new_handle(0);
    ioctl.link(link);
    // SAFETY: the provider gives a live context and new counters.
    code(unsafe {
        ioctl.send_only(ctx).map(|()| {
            (*counters).counters.context = ctx;
            (*counters).handle = ioctl.handle_at(place);
        })
    })
}

/// # Safety
/// `counters` live.
pub unsafe extern "C" fn destroy_counters(counters: *mut verbs_counters) -> c_int {
    let mut ioctl = Ioctl::new(object::COUNTERS, COUNTERS_DESTROY);
    // SAFETY: the provider gives live counters.
    code(unsafe {
        ioctl.handle(0, (*counters).handle);
        ioctl.send_only((*counters).counters.context).or_else(forgive)
    })
}

/// # Safety
/// `counters` live; `values` valid for `count` numbers, `link` null or a live command buffer.
pub unsafe extern "C" fn read_counters(
    counters: *mut verbs_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
    link: *mut ibv_command_buffer,
) -> c_int {
    let mut ioctl = Ioctl::new(object::COUNTERS, COUNTERS_READ);
    // SAFETY: the application gives live counters and room for the numbers.
    code(unsafe {
        ioctl.handle(0, (*counters).handle);
        ioctl.bytes_out(1, values.cast(), count as usize * size_of::<u64>());
        ioctl.value(2, flags);
        ioctl.link(link);
        ioctl.send_only((*counters).counters.context)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_become_the_kernels() {
        let mut to = Vec::new();
        let mut eth: ibv_flow_spec_eth = ibv_flow_spec_eth::zeroed();
        (eth.r#type, eth.size) = (IBV_FLOW_SPEC_ETH, 40);
        eth.val.dst_mac = [1, 2, 3, 4, 5, 6];
        eth.mask.dst_mac = [0xff; 6];
        let mut ip = ibv_flow_spec_ipv4::zeroed();
        (ip.r#type, ip.size) = (IBV_FLOW_SPEC_IPV4 | IBV_FLOW_SPEC_INNER, 24);
        (ip.val.src_ip, ip.mask.dst_ip) = (0x0102_0304u32.to_be(), u32::MAX);
        let mut drop = ibv_flow_spec_action_drop::zeroed();
        (drop.r#type, drop.size) = (IBV_FLOW_SPEC_ACTION_DROP, 8);
        // SAFETY: each spec is as long as it says.
        unsafe {
            assert_eq!(convert((&raw const eth).cast(), &mut to), Ok(40));
            assert_eq!(convert((&raw const ip).cast(), &mut to), Ok(24));
            assert_eq!(convert((&raw const drop).cast(), &mut to), Ok(8));
        }
        assert_eq!(to.len(), 40 + 32 + 8);
        assert_eq!(
            (&to[4..6], &to[8..14], &to[24..30]),
            (&40u16.to_ne_bytes()[..], &[1, 2, 3, 4, 5, 6][..], &[0xff; 6][..])
        );
        let ip = &to[40..72];
        assert_eq!(u32::from_ne_bytes(ip[..4].try_into().unwrap()), IBV_FLOW_SPEC_IPV4 | IBV_FLOW_SPEC_INNER);
        assert_eq!((&ip[8..12], &ip[20..28]), (&[1, 2, 3, 4][..], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff][..]));
    }

    #[test]
    fn a_spec_that_is_too_short_or_unknown_is_refused() {
        let mut to = Vec::new();
        let mut spec = [0u32; 8];
        for (kind, size) in [(IBV_FLOW_SPEC_IPV6, 24), (0x7777, 32), (IBV_FLOW_SPEC_ETH, 8)] {
            spec[0] = kind;
            spec[1] = size;
            // SAFETY: 32 bytes are there; what claims more is refused before it is read.
            assert_eq!(unsafe { convert(spec.as_ptr().cast(), &mut to) }, Err(Errno::EINVAL));
        }
        assert!(to.is_empty());
    }
}
