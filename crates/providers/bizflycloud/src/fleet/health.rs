//! How healthy a server is, as a condition of its Node (§5.9).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_cloud::clock::later;
use serde_json::{Value, json};

use super::since;
use crate::{client::wire::Server, repair::SERVER_HEALTHY};

/// What is said of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Healthy,
    Unhealthy { reason: &'static str, message: String },
}

/// How a server was bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Market {
    OnDemand,
    Spot,
}

/// What earlier looks at one server saw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    busy_since: Option<Timestamp>,
}

/// Resizing and the like take minutes; longer means that something hangs.
const BUSY_PATIENCE: Duration = Duration::from_secs(15 * 60);

impl Looks {
    /// Judges a server by what it is now and since when. `None` is a server that does not exist. A stopped spot server was
    /// taken away, so it counts as missing: it is not coming back.
    pub(super) fn judge(&mut self, server: Option<&Server>, market: Market, now: Timestamp) -> Health {
        let unhealthy = |reason, message| Health::Unhealthy { reason, message };
        let Some(server) = server else {
            return unhealthy("ServerMissing", "the server does not exist any more".to_owned());
        };
        let is_busy = matches!(
            server.status.as_str(),
            "MIGRATING" | "RESIZE" | "VERIFY_RESIZE" | "REVERT_RESIZE" | "REBUILD" | "REBOOT" | "HARD_REBOOT"
        );
        let busy_since = since(&mut self.busy_since, is_busy, now);
        let id = &server.id;
        match server.status.as_str() {
            "SHUTOFF" if market == Market::Spot => {
                unhealthy("ServerMissing", format!("spot server {id} was taken away"))
            }
            "SHUTOFF" => unhealthy("ServerStopped", format!("server {id} is stopped")),
            "SUSPENDED" => unhealthy("ServerSuspended", format!("server {id} is suspended")),
            "ERROR" => unhealthy("ServerError", format!("server {id} is in ERROR")),
            status if busy_since.is_some_and(|since| now >= later(since, BUSY_PATIENCE)) => unhealthy(
                "ServerBusy",
                format!("server {id} has been in {status} for a quarter of an hour"),
            ),
            // Running, busy for a moment, or in a state that nobody documented: left alone.
            _ => Health::Healthy,
        }
    }
}

impl Health {
    /// The condition to write, unless the Node says so already.
    pub(super) fn condition(&self, node: &Node, now: Timestamp) -> Option<Value> {
        let (status, reason, message) = match self {
            Self::Healthy => ("True", "ServerActive", "the server runs"),
            Self::Unhealthy { reason, message } => ("False", *reason, message.as_str()),
        };
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        let known = conditions
            .unwrap_or_default()
            .iter()
            .find(|condition| condition.type_ == SERVER_HEALTHY);
        if known.is_some_and(|known| known.status == status && known.reason.as_deref() == Some(reason)) {
            return None;
        }
        let kept = known
            .filter(|known| known.status == status)
            .and_then(|known| known.last_transition_time.as_ref());
        let since = kept.map_or(now, |time| time.0);
        Some(json!({
            "type": SERVER_HEALTHY, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": whole_seconds(now), "lastTransitionTime": whole_seconds(since),
        }))
    }
}

/// The API server keeps no fractions of these.
fn whole_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        later(Timestamp::UNIX_EPOCH, Duration::from_secs(seconds))
    }

    fn server(status: &str) -> Server {
        Server {
            id: "s".into(),
            status: status.into(),
            ..Server::default()
        }
    }

    fn reason(looks: &mut Looks, server: Option<&Server>, now: u64) -> &'static str {
        match looks.judge(server, Market::OnDemand, at(now)) {
            Health::Healthy => "healthy",
            Health::Unhealthy { reason, .. } => reason,
        }
    }

    #[test]
    fn every_state_has_its_verdict() {
        for (status, expected) in [
            ("ACTIVE", "healthy"),
            ("BUILD", "healthy"),
            ("SHUTOFF", "ServerStopped"),
            ("SUSPENDED", "ServerSuspended"),
            ("ERROR", "ServerError"),
            ("NEVER_HEARD_OF", "healthy"),
        ] {
            let mut looks = Looks::default();
            assert_eq!(reason(&mut looks, Some(&server(status)), 0), expected, "{status}");
        }
        assert_eq!(reason(&mut Looks::default(), None, 0), "ServerMissing");
        let taken = Looks::default().judge(Some(&server("SHUTOFF")), Market::Spot, at(0));
        assert!(matches!(
            taken,
            Health::Unhealthy {
                reason: "ServerMissing",
                ..
            }
        ));
    }

    #[test]
    fn a_busy_server_is_unhealthy_after_a_quarter_of_an_hour() {
        let mut looks = Looks::default();
        let busy = server("MIGRATING");
        assert_eq!(reason(&mut looks, Some(&busy), 0), "healthy");
        assert_eq!(reason(&mut looks, Some(&busy), 899), "healthy");
        assert_eq!(reason(&mut looks, Some(&busy), 900), "ServerBusy");
        assert_eq!(reason(&mut looks, Some(&server("ACTIVE")), 901), "healthy");
        assert_eq!(reason(&mut looks, Some(&busy), 902), "healthy", "counted anew");
    }

    #[test]
    fn a_node_is_written_to_only_when_something_changed() {
        let stopped = Health::Unhealthy {
            reason: "ServerStopped",
            message: "server s is stopped".into(),
        };
        let mut node = Node::default();
        let written = stopped.condition(&node, at(100)).expect("new");
        assert_eq!(written["lastTransitionTime"], "1970-01-01T00:01:40Z");
        node.status = serde_json::from_value(json!({"conditions": [written]})).expect("a status");
        assert_eq!(stopped.condition(&node, at(200)), None);
        let error = Health::Unhealthy {
            reason: "ServerError",
            message: "m".into(),
        };
        let written = error.condition(&node, at(300)).expect("another reason");
        assert_eq!(
            written["lastTransitionTime"], "1970-01-01T00:01:40Z",
            "it has been bad since"
        );
        assert_eq!(
            Health::Healthy.condition(&node, at(300)).expect("news")["status"],
            "True"
        );
    }
}
