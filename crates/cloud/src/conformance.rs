//! One set of tests that every provider passes against its simulated cloud.
//!
//! A provider's tests implement [`Environment`] and call [`conformance_tests!`](crate::conformance_tests), which makes one
//! test per rule. The rules are those that core relies upon: a claim never gets two machines, whatever crashes; nothing that
//! is not ours is touched; an incomplete answer is an error; labels and resources are what was promised.

pub mod catalogue;
pub mod inventory;
pub mod launch;
pub mod termination;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use karpenter_api::{
    NodeClaim, NodePool, Quantity, ResourceList,
    labels::{self, LabelRules},
    requirement::{NodeSelectorRequirementWithMinValues, Operator},
    resources::CPU,
};
use serde_json::json;

use crate::{
    instance::Instance,
    provider::{CloudProvider, Deletion, InstanceTypes},
};

/// A simulated cloud and a provider over it, and the means to make the cloud misbehave.
///
/// Hooks that a simulation does not have answer [`Support::No`]; the rules that need them are then not checked.
#[async_trait]
pub trait Environment: Send + Sync + 'static {
    /// The provider under test.
    fn provider(&self) -> Arc<dyn CloudProvider>;

    /// A NodePool whose NodeClass exists and is ready.
    fn node_pool(&self) -> NodePool;

    /// The provider of a process that was just started: nothing in memory, over the same cloud.
    async fn restart(&self) -> Arc<dyn CloudProvider>;

    /// Provider IDs of all machines at the cloud that are not terminating, ours or not.
    async fn machines(&self) -> Vec<String>;

    /// Lets time pass for the cloud and the provider.
    async fn pass(&self, duration: Duration);

    /// Makes the cloud misbehave.
    async fn inject(&self, _fault: Fault) -> Support {
        Support::No
    }

    /// Ends what [`inject`](Self::inject) started.
    async fn heal(&self) {}

    /// A machine that this cluster did not make; answers its provider ID.
    async fn add_foreign_machine(&self) -> Option<String> {
        None
    }

    /// Removes a machine behind the provider's back.
    async fn vanish(&self, _provider_id: &str) -> Support {
        Support::No
    }

    /// Makes the claim's machine differ from what its NodeClass asks for now.
    async fn cause_drift(&self, _claim: &NodeClaim) -> Support {
        Support::No
    }

    /// Takes the NodeClass out of service.
    async fn unready_node_class(&self) -> Support {
        Support::No
    }

    /// Runs the provider's own garbage collection to its end; these claims exist in the cluster.
    async fn collect_garbage(&self, _claims: &[NodeClaim]) -> Support {
        Support::No
    }
}

/// Whether an environment can do what a rule needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Support {
    Yes,
    No,
}

/// How the cloud misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The next launch happens, but its answer is lost.
    LoseLaunchAnswer,
    /// The next launch fails temporarily and does not happen.
    FailLaunch,
    /// Nothing can be had, until [`Environment::heal`].
    SellOutEverything,
    /// Reads fail temporarily, until [`Environment::heal`].
    FailReads,
    /// Terminations fail temporarily, until [`Environment::heal`].
    FailTerminations,
}

/// Makes one `#[tokio::test]` per rule. The argument is a function that makes a fresh [`Environment`]:
/// `karpenter_cloud::conformance_tests!(environment);` with `async fn environment() -> MyEnvironment`.
#[macro_export]
macro_rules! conformance_tests {
    ($environment:path) => {
        $crate::conformance_tests!(@rules $environment;
            launch: a_launch_satisfies_its_claim,
            launch: repeated_launches_of_a_claim_are_one_machine,
            launch: concurrent_launches_of_a_claim_are_one_machine,
            launch: claims_of_the_same_name_do_not_share_a_machine,
            launch: a_restarted_process_finds_the_machine,
            launch: a_lost_answer_does_not_lose_or_double_the_machine,
            launch: a_launch_that_is_dropped_anywhere_is_continued,
            launch: a_failed_launch_leaves_nothing_and_can_be_repeated,
            launch: a_claim_that_nothing_satisfies_is_insufficient_capacity,
            launch: a_sold_out_cloud_is_insufficient_capacity,
            launch: a_node_class_out_of_service_launches_nothing,
            termination: a_terminated_machine_is_gone_and_stays_gone,
            termination: terminating_one_machine_leaves_the_others,
            termination: a_failed_termination_is_not_gone,
            termination: terminating_a_vanished_machine_is_gone,
            termination: an_abandoned_launch_leaves_nothing,
            inventory: a_machine_reads_as_it_was_launched,
            inventory: the_list_is_complete_and_marked,
            inventory: failed_reads_are_errors,
            inventory: unknown_provider_ids_are_not_found,
            inventory: a_vanished_machine_is_not_found,
            inventory: foreign_machines_are_invisible_and_untouchable,
            inventory: drift_is_seen_and_only_then,
            inventory: a_reboot_may_be_repeated,
            inventory: garbage_collection_takes_orphans_only,
            catalogue: instance_types_make_sense,
            catalogue: unchanged_instance_types_are_the_same_arc,
            catalogue: labels_of_instance_types_are_well_known,
            catalogue: repair_policies_are_valid,
            catalogue: the_provider_names_itself_and_its_node_classes,
        );
    };
    (@rules $environment:path; $($module:ident: $rule:ident,)+) => {
        $(
            #[tokio::test]
            async fn $rule() {
                $crate::conformance::$module::$rule(&$environment().await).await;
            }
        )+
    };
}

/// Builds claims for the pool of an environment.
pub(crate) struct Claims {
    pool: NodePool,
    types: InstanceTypes,
}

impl Claims {
    pub(crate) async fn of(environment: &dyn Environment) -> Self {
        let pool = environment.node_pool();
        let types = environment
            .provider()
            .instance_types(&pool)
            .await
            .expect("instance types of a ready class");
        Self { pool, types }
    }

    /// A claim as provisioning makes it: all instance types, one cpu.
    pub(crate) fn claim(&self, number: u32) -> NodeClaim {
        let names = self.types.iter().map(|own| own.name.clone());
        let requirement = NodeSelectorRequirementWithMinValues::new(labels::INSTANCE_TYPE, Operator::In, names);
        self.with_requirements(
            number,
            vec![requirement],
            ResourceList::new().with(CPU, Quantity::from_milli(500)),
        )
    }

    pub(crate) fn with_requirements(
        &self,
        number: u32,
        requirements: Vec<NodeSelectorRequirementWithMinValues>,
        requests: ResourceList,
    ) -> NodeClaim {
        let pool_name = self.pool.metadata.name.clone().unwrap_or_default();
        let template = &self.pool.spec.template;
        let mut labels: BTreeMap<String, String> = [(labels::NODEPOOL.to_owned(), pool_name.clone())].into();
        labels.insert(
            template.spec.node_class_ref.label_key(),
            template.spec.node_class_ref.name.clone(),
        );
        let mut claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": format!("{pool_name}-{number:05}"),
                "uid": format!("00000000-0000-4000-8000-{number:012}"),
                "labels": labels,
            },
            "spec": {"requirements": [], "nodeClassRef": template.spec.node_class_ref},
        }))
        .expect("a NodeClaim");
        claim.spec.requirements = requirements;
        claim.spec.resources.requests = Some(requests);
        claim
    }

    pub(crate) fn types(&self) -> &InstanceTypes {
        &self.types
    }
}

/// The claim as core has it after the launch.
pub(crate) fn launched(claim: &NodeClaim, instance: &Instance) -> NodeClaim {
    let mut claim = claim.clone();
    instance.apply_to(&mut claim);
    claim
}

pub(crate) async fn launch(provider: &dyn CloudProvider, claim: &NodeClaim) -> NodeClaim {
    let instance = provider.create(claim).await.expect("a launch without faults succeeds");
    launched(claim, &instance)
}

/// Calls delete as core does: every five seconds until it is gone.
pub(crate) async fn terminate(environment: &dyn Environment, provider: &dyn CloudProvider, claim: &NodeClaim) {
    for _ in 0..200 {
        match Deletion::settle(provider.delete(claim).await) {
            Ok(Deletion::Gone) => return,
            Ok(Deletion::InProgress) => {}
            Err(error) => panic!("deleting without faults failed: {error}"),
        }
        environment.pass(Duration::from_secs(5)).await;
    }
    panic!("the machine is still not gone after 1000 s");
}

pub(crate) fn rules(provider: &dyn CloudProvider) -> LabelRules {
    provider.extend_label_rules(LabelRules::default())
}

/// The machines of the cloud that were not there before.
pub(crate) async fn new_machines(environment: &dyn Environment, before: &[String]) -> Vec<String> {
    let mut machines = environment.machines().await;
    machines.retain(|id| !before.contains(id));
    machines
}
