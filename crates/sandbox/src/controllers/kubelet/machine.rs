//! A machine that can be booted: what its Node will look like, and how long it takes to get there.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

/// A virtual machine with a kubelet on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The Node's name.
    pub name: String,
    pub provider_id: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// `--register-with-taints`.
    pub taints: Vec<Taint>,
    /// Quantities such as `cpu: "4"`, `memory: 16Gi`, `pods: "110"`.
    pub capacity: BTreeMap<String, String>,
    /// Capacity without what the system keeps for itself; all of it if empty.
    pub allocatable: BTreeMap<String, String>,
    /// Devices that a plugin announces only some time after the node is ready.
    pub late_resources: BTreeMap<String, String>,
    pub late_resources_delay: Duration,
    /// From the order to boot to the Node's registration.
    pub boot_delay: Duration,
    /// From registration to `Ready`.
    pub ready_delay: Duration,
    /// A machine that boots but never joins, or joins but never becomes ready.
    pub never_registers: bool,
    pub never_ready: bool,
    pub internal_ip: Option<String>,
    pub kubelet_version: String,
    pub os_image: String,
}

impl Machine {
    /// A machine of modest size that boots at once.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let labels = [
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ];
        let capacity = [
            ("cpu", "4"),
            ("memory", "16Gi"),
            ("pods", "110"),
            ("ephemeral-storage", "100Gi"),
        ];
        Self {
            provider_id: None,
            labels: labels.map(text).into(),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
            capacity: capacity.map(text).into(),
            allocatable: BTreeMap::new(),
            late_resources: BTreeMap::new(),
            late_resources_delay: Duration::ZERO,
            boot_delay: Duration::ZERO,
            ready_delay: Duration::ZERO,
            never_registers: false,
            never_ready: false,
            internal_ip: None,
            kubelet_version: "v1.36.3".to_owned(),
            os_image: "Sandbox Linux".to_owned(),
            name,
        }
    }

    #[must_use]
    pub fn provider_id(mut self, id: impl Into<String>) -> Self {
        self.provider_id = Some(id.into());
        self
    }

    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    #[must_use]
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// Adds a taint with which the kubelet registers.
    #[must_use]
    pub fn taint(mut self, key: impl Into<String>, value: impl Into<String>, effect: impl Into<String>) -> Self {
        let value = Some(value.into()).filter(|v: &String| !v.is_empty());
        self.taints.push(Taint {
            key: key.into(),
            value,
            effect: effect.into(),
            time_added: None,
        });
        self
    }

    #[must_use]
    pub fn capacity(mut self, resource: impl Into<String>, quantity: impl Into<String>) -> Self {
        self.capacity.insert(resource.into(), quantity.into());
        self
    }

    #[must_use]
    pub fn boots_after(mut self, delay: Duration) -> Self {
        self.boot_delay = delay;
        self
    }

    #[must_use]
    pub fn ready_after(mut self, delay: Duration) -> Self {
        self.ready_delay = delay;
        self
    }

    #[must_use]
    pub fn never_registers(mut self) -> Self {
        self.never_registers = true;
        self
    }

    #[must_use]
    pub fn never_ready(mut self) -> Self {
        self.never_ready = true;
        self
    }
}
