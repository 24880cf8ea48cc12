//! The KWOK provider: makes Node objects directly, compatible with upstream's KWOK provider.
