//! Planned nodes of a run, and the order in which they are offered pods.

use std::collections::VecDeque;

use super::daemons::add;
use super::templates::{RowSet, Template};
use super::volumes::{Attachment, Usage};
use crate::model::HostPort;
use crate::tables::{Amounts, Dims, SetId};

/// The quick check looks at cpu, memory and pods.
const QUICK: usize = Dims::PODS + 1;

/// A planned node: a superposition of instance types that narrows as pods are added.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) template: usize,
    pub(crate) set: SetId,
    pub(crate) rows: RowSet,
    /// Of pods, without daemons.
    pub(crate) requests: Amounts,
    pub(crate) pods: Vec<u32>,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) volumes: Usage,
    /// Reservations held, by index in the book.
    pub(crate) reservations: Vec<u32>,
    pub(crate) min_values_relaxed: bool,
}

/// What decides most refusals, packed for scanning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Brief {
    pub(crate) set: SetId,
    pub(crate) template: u32,
    /// More than this fits on none of the remaining types.
    room: [i64; QUICK],
    /// Place in the order: fewest pods first; among equals the one that just grew first, and new ones last.
    pub(crate) rank: (u32, i64),
}

impl Brief {
    pub(crate) fn has_room(&self, requests: &[i64]) -> bool {
        self.room.iter().zip(requests).all(|(room, request)| request <= room)
    }
}

/// All claims, and their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims {
    pub(crate) all: Vec<Claim>,
    pub(crate) briefs: Vec<Brief>,
    /// By number of pods; each in order.
    buckets: Vec<VecDeque<u32>>,
    front: i64,
    back: i64,
}

/// What a pod adds to a claim.
pub(crate) struct Added<'a> {
    pub(crate) pod: u32,
    pub(crate) requests: &'a [i64],
    pub(crate) ports: &'a [HostPort],
    pub(crate) attachments: &'a [Attachment],
    pub(crate) set: SetId,
    pub(crate) rows: &'a [u64],
    pub(crate) reservations: Vec<u32>,
}

impl Claims {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Claims with the same number of pods form a bucket; buckets and their claims are asked in order (scheduling.md §10.1).
    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    pub(crate) fn bucket_len(&self, bucket: usize) -> usize {
        self.buckets[bucket].len()
    }

    pub(crate) fn at(&self, bucket: usize, place: usize) -> u32 {
        self.buckets[bucket][place]
    }

    pub(crate) fn open(&mut self, at: usize, template: &Template, min_values_relaxed: bool, added: Added<'_>) {
        let mut claim = Claim {
            template: at,
            set: added.set,
            rows: Box::default(),
            requests: Amounts::new(),
            pods: Vec::new(),
            ports: Vec::new(),
            volumes: Usage::default(),
            reservations: Vec::new(),
            min_values_relaxed,
        };
        claim.take(added);
        self.back += 1;
        self.briefs.push(brief(&claim, template, (1, self.back)));
        if self.buckets.is_empty() {
            self.buckets.push(VecDeque::new());
        }
        self.buckets[0].push_back(self.all.len() as u32);
        self.all.push(claim);
    }

    pub(crate) fn grow(&mut self, id: u32, template: &Template, added: Added<'_>) {
        let claim = &mut self.all[id as usize];
        claim.take(added);
        let bucket = claim.pods.len() - 1;
        let old = &mut self.buckets[bucket - 1];
        let position = old
            .iter()
            .position(|other| *other == id)
            .expect("a claim is in the bucket of its size");
        old.remove(position);
        if self.buckets.len() <= bucket {
            self.buckets.push(VecDeque::new());
        }
        self.buckets[bucket].push_front(id);
        self.front -= 1;
        self.briefs[id as usize] = brief(claim, template, (claim.pods.len() as u32, self.front));
    }
}

impl Claim {
    fn take(&mut self, added: Added<'_>) {
        self.pods.push(added.pod);
        add(&mut self.requests, added.requests);
        self.ports.extend(added.ports);
        self.volumes.extend(added.attachments);
        self.set = added.set;
        if self.rows.len() == added.rows.len() {
            self.rows.copy_from_slice(added.rows);
        } else {
            self.rows = added.rows.into();
        }
        self.reservations = added.reservations;
    }
}

fn brief(claim: &Claim, template: &Template, rank: (u32, i64)) -> Brief {
    let mut room = [0; QUICK];
    for (dim, room) in room.iter_mut().enumerate() {
        *room = template.most_free(dim, &claim.rows) - claim.requests.get(dim).copied().unwrap_or(0);
    }
    Brief {
        set: claim.set,
        template: claim.template as u32,
        room,
        rank,
    }
}
