//! The exported functions, one file per object: check pointers, convert, call, convert back.
