//! Serves an empty sandbox on a TCP port: `cargo run -p karpenter-sandbox --example serve -- 127.0.0.1:8001 kubeconfig`.

#![allow(clippy::print_stderr)]

use std::path::Path;

use karpenter_sandbox::{Clock, Sandbox};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let kubeconfig = arguments.next().unwrap_or_else(|| "kubeconfig".into());
    let address = address.parse().map_err(std::io::Error::other)?;
    let sandbox = Sandbox::builder().clock(Clock::real()).start();
    let server = sandbox.serve_tcp(address).await?;
    server.write_kubeconfig(Path::new(&kubeconfig))?;
    eprintln!(
        "serving {}; try: kubectl --kubeconfig {kubeconfig} get namespaces",
        server.url()
    );
    tokio::signal::ctrl_c().await
}
