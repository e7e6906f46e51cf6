//! RoCEv2 formats, one header per file: view, plain value, checked constructor.
