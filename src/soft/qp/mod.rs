//! Message rules, the same for every path: states, begin, place, finish, completions, errors. No C type, socket or clock.
