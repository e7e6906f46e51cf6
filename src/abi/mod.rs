//! `repr(C)` mirrors of the public and private headers, const-asserted; no behaviour.
