//! The provider's NodeClass objects, as far as every kind of them is alike.

use std::sync::Arc;

use karpenter_api::{NodeClassReference, NodePool};
use karpenter_cloud::{CloudProvider, NodeClassKind, NodeClassState};
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::runner::Controller;
use crate::watch::{Cache, Key};

/// One watch per NodeClass kind that the provider serves.
#[derive(Clone, Debug)]
pub struct NodeClasses(Arc<[Kind]>);

#[derive(Debug)]
struct Kind {
    kind: NodeClassKind,
    classes: Arc<Cache<NodeClassState>>,
}

impl NodeClasses {
    /// Caches for the provider's kinds. Nothing is in them until [`NodeClasses::run`].
    pub fn of(cloud: &dyn CloudProvider) -> Self {
        let kinds = cloud.supported_node_classes().into_iter();
        Self(
            kinds
                .map(|kind| Kind {
                    kind,
                    classes: Cache::new("NodeClass"),
                })
                .collect(),
        )
    }

    /// Watches every kind, as tasks of `tasks`.
    pub fn run(&self, tasks: &mut JoinSet<()>, client: &Client, clock: &Clock) {
        for Kind { kind, classes } in self.0.iter() {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.api_resource());
            let state = |object: DynamicObject| NodeClassState::of(&object);
            tasks.spawn(
                classes
                    .clone()
                    .feed(api, watcher::Config::default(), clock.clone(), state),
            );
        }
    }

    /// Resolves once every kind has been listed.
    pub async fn synced(&self) {
        for kind in self.0.iter() {
            kind.classes.synced().await;
        }
    }

    /// The NodeClass that `reference` means, if it is one of ours and exists.
    pub fn get(&self, reference: &NodeClassReference) -> Option<Arc<NodeClassState>> {
        let kind = self
            .0
            .iter()
            .find(|kind| kind.kind.is_meant_by(&reference.group, &reference.kind))?;
        kind.classes.named(&reference.name)
    }

    /// Has a single loop run again whenever a NodeClass is created, deleted or edited; its status is no reason.
    pub fn wake_singleton(&self, mut controller: Controller<()>) -> Controller<()> {
        for kind in self.0.iter() {
            controller = controller.watches(&kind.classes, |change| {
                let generation = |class: &Option<Arc<NodeClassState>>| class.as_ref().map(|class| class.generation);
                (generation(&change.old) != generation(&change.new)).then_some(())
            });
        }
        controller
    }

    /// Has `controller` look at the NodePools of a NodeClass whenever that changes.
    pub fn wake_pools(&self, mut controller: Controller<Key>, pools: &Arc<Cache<NodePool>>) -> Controller<Key> {
        for Kind { kind, classes } in self.0.iter() {
            let (kind, pools) = (kind.clone(), pools.clone());
            controller = controller.watches(classes, move |change| {
                let refers = |pool: &NodePool| {
                    let reference = &pool.spec.template.spec.node_class_ref;
                    reference.name == *change.key.name && kind.is_meant_by(&reference.group, &reference.kind)
                };
                let pools = pools.list();
                pools
                    .iter()
                    .filter(|pool| refers(pool))
                    .map(|pool| Key::cluster(pool.name_any()))
                    .collect::<Vec<_>>()
            });
        }
        controller
    }
}
