//! `/` of the agent: where memory went, for a browser. One page, read-only, without outside resources.
//!
//! - `squares`: how hot each volume's slabs are; `events`: what began and ended; [`model`]: what the page shows.
//! - `assets/`: the page itself, its style and its script. The script asks for `DATA_PATH` every two seconds.
//!
//! The figures are those of `spillway top` (`top::model`); nothing here asks a process by itself. The page has no
//! key, no content of memory, and changes nothing.

mod events;
pub mod model;
mod squares;

use std::borrow::Cow;

use crate::web_server::Content;

/// Where the page's figures are.
pub(crate) const DATA_PATH: &str = "/page.json";

/// What a path stands for, if it belongs to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A file that never changes.
    Asset(&'static Asset),
    /// The figures.
    Data,
}

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const ASSETS: [Asset; 3] = [
    Asset { path: "/", kind: "text/html; charset=utf-8", text: include_str!("assets/page.html") },
    Asset { path: "/page.css", kind: "text/css; charset=utf-8", text: include_str!("assets/page.css") },
    Asset { path: "/page.js", kind: "text/javascript; charset=utf-8", text: include_str!("assets/page.js") },
];

/// The part of the page at `path`.
pub fn part(path: &str) -> Option<Part> {
    if path == DATA_PATH {
        return Some(Part::Data);
    }
    ASSETS.iter().find(|asset| asset.path == path).map(Part::Asset)
}

impl Asset {
    /// As an answer.
    pub fn content(&self) -> Content {
        Content { kind: self.kind, text: Cow::Borrowed(self.text), is_unavailable: false }
    }
}

/// The figures as an answer.
pub fn data(json: String) -> Content {
    Content { kind: "application/json", text: Cow::Owned(json), is_unavailable: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_path_and_no_other_path_has_one() {
        for path in ["/", "/page.css", "/page.js"] {
            assert!(matches!(part(path), Some(Part::Asset(asset)) if asset.path == path));
        }
        assert_eq!(part(DATA_PATH), Some(Part::Data));
        for path in ["", "/metrics", "/page", "/page.json/", "//", "/../page.css"] {
            assert_eq!(part(path), None, "{path}");
        }
    }

    #[test]
    fn the_page_needs_nothing_from_outside_and_writes_no_markup_from_figures() {
        for asset in &ASSETS {
            // The name of SVG's elements is no resource.
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            for outside in ["http:", "https:", "@import", "url(", "//cdn"] {
                assert!(!text.contains(outside), "{}: {outside}", asset.path);
            }
            for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!text.contains(markup), "{}: {markup}", asset.path);
            }
        }
    }
}
