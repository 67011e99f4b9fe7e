//! The version of the reports' form, and reading a report.
//!
//! Fields may be added within a version: older readers skip them. A field that goes, or gets another meaning, is a new
//! version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The newest form that is known here.
const NEWEST: u32 = 1;

/// The version of a report's form. A report without one was written before there were versions, in the first form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Format(u32);

impl Default for Format {
    fn default() -> Self {
        Self(NEWEST)
    }
}

/// Why a report cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A later release wrote it.
    #[error(
        "it has form {0} of reports, and this release of spillway knows forms up to {NEWEST}; use the release that \
         wrote it"
    )]
    Newer(u32),
    /// A field is missing, or is not what it should be.
    #[error("{0}; another release of spillway wrote it: use that one, or start the process again")]
    Malformed(#[from] serde_json::Error),
}

/// The part of each report that every release can read.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: Format,
}

/// Reads a report. The form is looked at first, because in a newer one any other field may be different.
pub fn read<Report: DeserializeOwned>(report: &Value) -> Result<Report, ReportError> {
    let Head { format: Format(version) } = Head::deserialize(report)?;
    if version > NEWEST {
        return Err(ReportError::Newer(version));
    }
    Ok(Report::deserialize(report)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Pages {
        pages: u64,
    }

    #[test]
    fn a_report_with_and_without_a_version_is_read_and_more_fields_are_skipped() {
        for report in [json!({"pages": 7}), json!({"format": 1, "pages": 7, "later": true})] {
            assert_eq!(read::<Pages>(&report).unwrap().pages, 7);
        }
    }

    #[test]
    fn a_newer_form_is_named_whatever_else_is_in_it() {
        let error = read::<Pages>(&json!({"format": NEWEST + 1, "pages": "seven"})).unwrap_err();
        assert!(matches!(error, ReportError::Newer(2)), "{error}");
        assert!(error.to_string().contains("form 2 of reports"), "{error}");
    }
}
