//! Protection domains, keys, access checks, and the copies to and from registered memory.
