//! The manifests that scenarios start from.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::world;

/// Where the machines of pools come from: a provider's class, and what pools ask of it.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The class, and what it needs.
    pub(crate) class: String,
    /// YAML on one line, as everything below.
    class_ref: String,
    requirements: String,
    /// Where there are machines.
    pub(crate) zones: Vec<String>,
}

/// A NodePool; the class that it names comes with it.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    name: &'static str,
    limits: Option<&'static str>,
    weight: Option<u8>,
    termination_grace_period: Option<&'static str>,
    expire_after: &'static str,
    disruption: &'static str,
    label: Option<(&'static str, &'static str)>,
    replicas: Option<u32>,
}

// === impl Source ===

impl Source {
    pub(crate) fn kwok() -> Self {
        Self::of(KWOK, &["test-zone-a", "test-zone-b", "test-zone-c", "test-zone-d"])
            .expect("a constant that has a NodePool")
    }

    /// Takes a class from manifests that go with a NodePool which uses it. Pools made of this source ask for what that one does.
    pub(crate) fn of(manifests: &str, zones: &[&str]) -> Result<Self> {
        let is_pool = |object: &kube::api::DynamicObject| {
            let types = object.types.as_ref();
            types.is_some_and(|types| types.kind == "NodePool")
        };
        let (pools, class): (Vec<_>, Vec<_>) = world::documents(manifests)?.into_iter().partition(is_pool);
        let pool = pools.first().context("no NodePool that shows how to use the class")?;
        let machines = &pool.data["spec"]["template"]["spec"];
        let class: Vec<String> = class.iter().map(serde_norway::to_string).collect::<Result<_, _>>()?;
        let one_line = |value: &Value| value.to_string();
        Ok(Self {
            class: class.join("---\n"),
            class_ref: one_line(&machines["nodeClassRef"]),
            requirements: one_line(&machines["requirements"]),
            zones: zones.iter().map(|&zone| zone.to_owned()).collect(),
        })
    }
}

/// The pool that upstream was measured with.
const KWOK: &str = r#"
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
spec: {}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: kubernetes.io/os, operator: In, values: [linux]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
      - {key: karpenter.kwok.sh/instance-cpu, operator: Lt, values: ["17"]}
"#;

// === impl Pool ===

impl Pool {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            limits: None,
            weight: None,
            termination_grace_period: None,
            expire_after: "Never",
            label: None,
            replicas: None,
            disruption: "{consolidationPolicy: WhenEmpty, consolidateAfter: 5s, budgets: [{nodes: \"100%\"}]}",
        }
    }

    pub(crate) fn limits(mut self, limits: &'static str) -> Self {
        self.limits = Some(limits);
        self
    }

    pub(crate) fn weight(mut self, weight: u8) -> Self {
        self.weight = Some(weight);
        self
    }

    pub(crate) fn termination_grace_period(mut self, period: &'static str) -> Self {
        self.termination_grace_period = Some(period);
        self
    }

    pub(crate) fn expire_after(mut self, lifetime: &'static str) -> Self {
        self.expire_after = lifetime;
        self
    }

    /// The whole `disruption` section, as YAML on one line.
    pub(crate) fn disruption(mut self, section: &'static str) -> Self {
        self.disruption = section;
        self
    }

    /// A label of the nodes.
    pub(crate) fn label(mut self, key: &'static str, value: &'static str) -> Self {
        self.label = Some((key, value));
        self
    }

    /// Makes it a static pool.
    pub(crate) fn replicas(mut self, count: u32) -> Self {
        self.replicas = Some(count);
        self
    }

    /// The pool, on the class of `source`, and that class.
    pub(crate) fn yaml(&self, source: &Source) -> String {
        let Self {
            name,
            expire_after,
            disruption,
            ..
        } = self;
        let Source {
            class,
            class_ref,
            requirements,
            ..
        } = source;
        let limits = self
            .limits
            .map(|limits| format!("  limits: {{{limits}}}\n"))
            .unwrap_or_default();
        let weight = self
            .weight
            .map(|weight| format!("  weight: {weight}\n"))
            .unwrap_or_default();
        let period = self
            .termination_grace_period
            .map(|period| format!("      terminationGracePeriod: {period}\n"))
            .unwrap_or_default();
        let label = self
            .label
            .map(|(key, value)| format!("    metadata: {{labels: {{{key}: {value}}}}}\n"))
            .unwrap_or_default();
        let replicas = self
            .replicas
            .map(|count| format!("  replicas: {count}\n"))
            .unwrap_or_default();
        format!(
            "{class}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {{name: {name}}}
spec:
{limits}{weight}{replicas}  disruption: {disruption}
  template:
{label}    spec:
      nodeClassRef: {class_ref}
      expireAfter: {expire_after}
{period}      requirements: {requirements}
"
        )
    }
}

/// A Deployment in the default namespace; `more` is YAML at the depth of the pod's spec.
pub(crate) fn deployment(name: &str, replicas: usize, cpu: &str, memory: &str, more: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: default}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1{more}
      containers: [{{name: main, image: main, resources: {{requests: {{cpu: \"{cpu}\", memory: {memory}}}}}}}]
"
    )
}
