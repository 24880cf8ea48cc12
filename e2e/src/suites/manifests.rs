//! The manifests that scenarios start from.

/// A NodePool on the default KWOKNodeClass; the class comes with it.
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

    pub(crate) fn yaml(&self) -> String {
        let Self {
            name,
            expire_after,
            disruption,
            ..
        } = self;
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
            "
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {{name: default}}
spec: {{}}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {{name: {name}}}
spec:
{limits}{weight}{replicas}  disruption: {disruption}
  template:
{label}    spec:
      nodeClassRef: {{group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}}
      expireAfter: {expire_after}
{period}      requirements:
      - {{key: kubernetes.io/arch, operator: In, values: [amd64]}}
      - {{key: kubernetes.io/os, operator: In, values: [linux]}}
      - {{key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}}
      - {{key: karpenter.kwok.sh/instance-cpu, operator: Lt, values: [\"17\"]}}
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
