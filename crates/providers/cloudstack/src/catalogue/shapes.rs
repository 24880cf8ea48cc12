//! The sizes in which an offering is used: its own, or those of customOfferings (cloudstack.md §7.5).

use crate::{client::model::ServiceOffering, node_class::CloudStackNodeClass};

/// A size of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub cpu: i64,
    /// MiB.
    pub memory: i64,
    /// MHz.
    pub cpu_speed: Option<i64>,
    /// Which dimensions a launch must name.
    pub open: Open,
}

/// The dimensions that an offering leaves to each machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Open {
    pub cpu: bool,
    pub memory: bool,
    pub speed: bool,
}

impl Shape {
    pub fn is_custom(&self) -> bool {
        self.open != Open::default()
    }

    /// `-4c-8g`, or `-4c-1536mg` where it is not whole GiB.
    pub fn suffix(&self) -> String {
        if self.memory % 1024 == 0 {
            format!("-{}c-{}g", self.cpu, self.memory / 1024)
        } else {
            format!("-{}c-{}mg", self.cpu, self.memory)
        }
    }
}

/// The shapes of an offering within a class.
pub fn of(class: &CloudStackNodeClass, offering: &ServiceOffering) -> Vec<Shape> {
    let open = Open {
        cpu: offering.cpunumber.is_none(),
        memory: offering.memory.is_none(),
        speed: offering.cpuspeed.is_none() && (offering.cpunumber.is_none() || offering.memory.is_none()),
    };
    if let (Some(cpu), Some(memory)) = (offering.cpunumber, offering.memory) {
        return vec![Shape {
            cpu,
            memory,
            cpu_speed: offering.cpuspeed,
            open: Open::default(),
        }];
    }
    let bound = |name: &str| {
        offering
            .serviceofferingdetails
            .get(name)
            .and_then(|text| text.parse::<i64>().ok())
    };
    let cpus = bound("mincpunumber").unwrap_or(1)..=bound("maxcpunumber").unwrap_or(i64::MAX);
    let memories = bound("minmemory").unwrap_or(32)..=bound("maxmemory").unwrap_or(i64::MAX);
    let mut shapes: Vec<Shape> = Vec::new();
    for wanted in class.spec.custom_offerings.iter().flatten() {
        let is_meant = wanted
            .offering
            .as_ref()
            .is_none_or(|named| *named == offering.id || *named == offering.name);
        if !is_meant {
            continue;
        }
        for cpu in &wanted.cpu {
            let cpu = offering.cpunumber.unwrap_or(*cpu);
            let by_ratio = wanted.ratios.iter().flatten().map(|ratio| ratio * cpu);
            let memories_wanted = wanted.memory_mib.iter().flatten().copied().chain(by_ratio);
            for memory in memories_wanted {
                let memory = offering.memory.unwrap_or(memory);
                if cpus.contains(&cpu) && memories.contains(&memory) {
                    shapes.push(Shape {
                        cpu,
                        memory,
                        cpu_speed: offering.cpuspeed.or(wanted.cpu_speed),
                        open,
                    });
                }
            }
        }
    }
    shapes.sort_unstable();
    shapes.dedup_by_key(|shape| (shape.cpu, shape.memory));
    shapes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(custom: serde_json::Value) -> CloudStackNodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.k8s.cloudstack/v1", "kind": "CloudStackNodeClass", "metadata": {"name": "a"},
            "spec": {"zone": "z", "networkSelectorTerms": [{"name": "n"}], "templateSelectorTerms": [{"name": "t"}],
                "serviceOfferingSelectorTerms": [{"name": "s"}], "customOfferings": custom},
        }))
        .expect("a class")
    }

    fn custom() -> ServiceOffering {
        let details = [
            ("mincpunumber", "1"),
            ("maxcpunumber", "4"),
            ("minmemory", "512"),
            ("maxmemory", "8192"),
        ];
        ServiceOffering {
            id: "o".into(),
            name: "custom".into(),
            cpuspeed: Some(1000),
            iscustomized: true,
            serviceofferingdetails: details.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..ServiceOffering::default()
        }
    }

    fn suffixes(shapes: &[Shape]) -> Vec<String> {
        shapes.iter().map(Shape::suffix).collect()
    }

    #[test]
    fn every_combination_within_bounds_is_a_shape() {
        let shapes = of(
            &class(json!([{"cpu": [1, 4, 8], "memoryMiB": [1024, 1536, 16384]}])),
            &custom(),
        );
        assert_eq!(suffixes(&shapes), ["-1c-1g", "-1c-1536mg", "-4c-1g", "-4c-1536mg"]);
        assert!(
            shapes
                .iter()
                .all(|shape| shape.open.cpu && shape.open.memory && !shape.open.speed)
        );
    }

    #[test]
    fn memory_may_follow_the_number_of_cpus() {
        let shapes = of(&class(json!([{"cpu": [1, 2], "ratios": [2048]}])), &custom());
        assert_eq!(suffixes(&shapes), ["-1c-2g", "-2c-4g"]);
    }

    #[test]
    fn shapes_of_another_offering_are_not_used() {
        let shapes = of(
            &class(json!([{"offering": "other", "cpu": [1], "memoryMiB": [1024]}])),
            &custom(),
        );
        assert!(shapes.is_empty());
    }

    #[test]
    fn speed_is_open_only_where_the_offering_leaves_it_so() {
        let offering = ServiceOffering {
            cpuspeed: None,
            ..custom()
        };
        let shapes = of(
            &class(json!([{"cpu": [1], "memoryMiB": [1024], "cpuSpeed": 1500}])),
            &offering,
        );
        assert_eq!((shapes[0].open.speed, shapes[0].cpu_speed), (true, Some(1500)));
    }
}
