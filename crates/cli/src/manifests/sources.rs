//! The files behind `-f`: files, directories read recursively, and stdin.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Manifest, ManifestError, json, yaml};

/// Where manifests are read from.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Sources {
    /// A file, a directory (read recursively: .yaml, .yml, .json) or - for stdin; can be given several times.
    #[arg(short = 'f', long = "filename", value_name = "PATH", required = true)]
    pub(crate) files: Vec<String>,
}

impl Sources {
    /// Hands every object to `each`, in the order given; directories in the order of their file names.
    pub(crate) fn read(
        &self,
        each: &mut dyn FnMut(Manifest) -> Result<(), ManifestError>,
    ) -> Result<(), ManifestError> {
        let mut stdin_read = false;
        for source in &self.files {
            if source == "-" {
                if std::mem::replace(&mut stdin_read, true) {
                    return Err(ManifestError::StdinTwice);
                }
                let mut bytes = Vec::new();
                io::stdin()
                    .lock()
                    .read_to_end(&mut bytes)
                    .map_err(|cause| unreadable(Path::new("-"), cause))?;
                read_bytes("-".into(), &bytes, each)?;
                continue;
            }
            for path in files_of(Path::new(source))? {
                let bytes = fs::read(&path).map_err(|cause| unreadable(&path, cause))?;
                read_bytes(path.display().to_string().into(), &bytes, each)?;
            }
        }
        Ok(())
    }
}

/// Reads one file's content; what starts like JSON is read as JSON, which is also YAML but far cheaper.
pub(super) fn read_bytes(
    file: Arc<str>,
    bytes: &[u8],
    each: &mut dyn FnMut(Manifest) -> Result<(), ManifestError>,
) -> Result<(), ManifestError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => json::read(file, bytes, each),
        _ => yaml::read(file, bytes, each),
    }
}

fn files_of(path: &Path) -> Result<Vec<PathBuf>, ManifestError> {
    let metadata = fs::metadata(path).map_err(|cause| unreadable(path, cause))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    collect(path, &mut BTreeSet::new(), &mut files)?;
    if files.is_empty() {
        return Err(ManifestError::EmptyDirectory(path.display().to_string()));
    }
    Ok(files)
}

/// Walks a directory in order of names. Directories already seen are left out, so that a link to a parent can't loop.
fn collect(directory: &Path, seen: &mut BTreeSet<PathBuf>, files: &mut Vec<PathBuf>) -> Result<(), ManifestError> {
    let real = fs::canonicalize(directory).map_err(|cause| unreadable(directory, cause))?;
    if !seen.insert(real) {
        return Ok(());
    }
    let entries = fs::read_dir(directory).map_err(|cause| unreadable(directory, cause))?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(|cause| unreadable(directory, cause))?;
    paths.sort();
    for path in paths {
        let metadata = fs::metadata(&path).map_err(|cause| unreadable(&path, cause))?;
        if metadata.is_dir() {
            collect(&path, seen, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
        {
            files.push(path);
        }
    }
    Ok(())
}

fn unreadable(path: &Path, cause: io::Error) -> ManifestError {
    ManifestError::Unreadable {
        file: path.display().to_string(),
        cause,
    }
}
