//! Kernel devices through `/dev/infiniband/uverbsN`. Empty until their issue comes.
