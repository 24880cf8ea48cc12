//! A way to the API server that can be cut, for one replica alone.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Forwards bytes as long as it is whole. While cut it swallows them without a word, as a broken network does: connections hang,
/// new ones are accepted and stay silent. When mended, what hung is dropped, and new connections get through.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    line: Arc<watch::Sender<Line>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Whole,
    Cut,
}

// === impl Proxy ===

impl Proxy {
    /// Listens on a free loopback port for connections to `port`.
    pub(crate) async fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("no free port on loopback")?;
        let address = listener.local_addr()?;
        let line = Arc::new(watch::Sender::new(Line::Whole));
        let state = Arc::clone(&line);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(carry(client, port, state.subscribe()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, line, task })
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn cut(&self) {
        self.line.send_replace(Line::Cut);
    }

    pub(crate) fn mend(&self) {
        self.line.send_replace(Line::Whole);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries one connection until it ends or the line is cut; then holds it, open and silent, until the line is mended.
async fn carry(client: TcpStream, port: u16, mut line: watch::Receiver<Line>) {
    let mut copying = std::pin::pin!(copy(client, port));
    tokio::select! {
        // A cut line carries nothing more, whatever else is ready.
        biased;
        _ = line.wait_for(|line| *line == Line::Cut) => {}
        () = &mut copying => return,
    }
    let _ = line.wait_for(|line| *line == Line::Whole).await;
}

async fn copy(client: TcpStream, port: u16) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            if to_server.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            if to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
