//! Writes a benchmark workload as files that `karpenter simulate` reads.
//!
//! `cargo run -p karpenter-engine --example workload -- diverse 5000 --out target/diverse-5000`
//! makes `cluster/cluster.json` and `types.json` in the given directory.

mod generate;

use std::{error::Error, fs, io::BufWriter, path::PathBuf};

use generate::{Fill, Mix};
use serde_json::json;

const USAGE: &str = "usage: workload <generic|diverse|prefer> <pods> [--types 400] [--nodes 0] [--running 0] [--nodes-are loose|packed] --out DIR";

fn main() -> Result<(), Box<dyn Error>> {
    let options = parse(std::env::args().skip(1))?;
    let workload = if options.nodes == 0 {
        generate::pending(options.mix, options.pods, options.types)
    } else {
        let fill = options.fill;
        generate::with_nodes(
            options.mix,
            options.pods,
            options.types,
            options.nodes,
            options.running,
            fill,
        )
    };
    fs::create_dir_all(options.out.join("cluster"))?;
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": workload.objects });
    serde_json::to_writer(
        BufWriter::new(fs::File::create(options.out.join("cluster/cluster.json"))?),
        &list,
    )?;
    serde_json::to_writer(
        BufWriter::new(fs::File::create(options.out.join("types.json"))?),
        &workload.types,
    )?;
    Ok(())
}

struct Options {
    mix: Mix,
    pods: usize,
    types: usize,
    nodes: usize,
    running: usize,
    fill: Fill,
    out: PathBuf,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let mix = arguments.next().and_then(|name| Mix::parse(&name)).ok_or(USAGE)?;
    let pods = arguments.next().ok_or(USAGE)?.parse()?;
    let (mut types, mut nodes, mut running, mut fill, mut out) = (400, 0, 0, Fill::Loose, None);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match flag.as_str() {
            "--types" => types = value.parse()?,
            "--nodes" => nodes = value.parse()?,
            "--running" => running = value.parse()?,
            "--nodes-are" => fill = Fill::parse(&value).ok_or(USAGE)?,
            "--out" => out = Some(PathBuf::from(value)),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(Options {
        mix,
        pods,
        types,
        nodes,
        running,
        fill,
        out: out.ok_or(USAGE)?,
    })
}
