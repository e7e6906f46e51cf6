//! Commands that a provider has put together itself: counting their attributes and sending them.
use crate::kernel::command::linked;

export_private!(34: linked::final_num_attrs => "__ioctl_final_num_attrs");
export_private!(34: linked::execute_ioctl => "execute_ioctl");
