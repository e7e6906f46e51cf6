//! A queue pair has nothing that matters here.
#[allow(missing_docs)]
#[derive(Debug)]
pub struct Qp;
