//! The host ports that a pod occupies on its node.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::api::core::v1 as kube;

use crate::model::{HostPort, Protocol};

/// Ports of the containers that ask for one on the host; init containers don't count (scheduling.md §2.2).
pub fn host_ports(spec: &kube::PodSpec) -> Vec<HostPort> {
    let ports = spec
        .containers
        .iter()
        .flat_map(|container| container.ports.iter().flatten());
    let mut ports: Vec<HostPort> = ports.filter_map(host_port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn host_port(port: &kube::ContainerPort) -> Option<HostPort> {
    let number = port
        .host_port
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number != 0)?;
    let protocol = match port.protocol.as_deref() {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    let ip = port
        .host_ip
        .as_deref()
        .and_then(|ip| ip.parse().ok())
        .unwrap_or(EVERY_ADDRESS);
    Some(HostPort {
        ip,
        port: number,
        protocol,
    })
}

const EVERY_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_container_ports_with_a_host_port_count() {
        let spec: kube::PodSpec = serde_json::from_value(json!({
            "initContainers": [{ "name": "i", "ports": [{ "containerPort": 1, "hostPort": 1 }] }],
            "containers": [{ "name": "c", "ports": [
                { "containerPort": 80, "hostPort": 8080 },
                { "containerPort": 81 },
                { "containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1" }] }] }))
        .unwrap();
        let expect = [
            HostPort {
                ip: EVERY_ADDRESS,
                port: 8080,
                protocol: Protocol::Tcp,
            },
            HostPort {
                ip: "10.0.0.1".parse().unwrap(),
                port: 53,
                protocol: Protocol::Udp,
            },
        ];
        assert_eq!(host_ports(&spec), expect);
    }
}
