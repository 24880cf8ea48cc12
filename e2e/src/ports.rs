//! Ports for processes that are told a port and bind it some time later.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};

/// Below what the kernel gives away by itself (from 32768 on, for connections and for listeners that ask for any port): nobody
/// takes such a port before its process does, nor while that process is restarted.
const FIRST: u16 = 16_384;
const COUNT: u16 = 16_000;

/// A port that nobody listens on and that this run has not given away before.
pub(crate) fn free_port() -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Runs beside each other begin at different places.
    let start = std::process::id().wrapping_mul(127);
    for _ in 0..COUNT {
        let offset = start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port on loopback")
}
