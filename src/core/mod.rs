//! Device list, context life, completion channels, async events, errno conventions, logging.
