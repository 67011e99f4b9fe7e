//! Whether a picture is well-formed.

/// Whether every element that is opened is closed in order: enough of a check for what our writer can get wrong.
pub fn is_well_formed(svg: &str) -> bool {
    let mut open: Vec<String> = Vec::new();
    for part in svg.split('<').skip(1) {
        let Some((tag, text)) = part.split_once('>') else { return false };
        if text.contains('>') {
            return false;
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap_or_default().to_owned());
        }
    }
    open.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_itself_finds_faults() {
        assert!(is_well_formed("<svg><a/><b>text</b></svg>"));
        for wrong in ["<svg>", "<svg></a></svg>", "<svg><a></svg></a>", "<svg>a > b</svg>"] {
            assert!(!is_well_formed(wrong), "{wrong}");
        }
    }
}
