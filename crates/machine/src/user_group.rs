//! Groups of users by their names.

use std::io;

/// Why a group has no number.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The file of groups cannot be read.
    #[error("{FILE}: {0}; write the group's number")]
    Unreadable(#[from] io::Error),
    /// It has no such group.
    #[error("there is no group '{0}' in {FILE}; name one of those, or write a number")]
    Unknown(String),
}

/// group(5). A directory service may know others, which can be written as numbers.
const FILE: &str = "/etc/group";

/// The number of the group of this name; a number stands for itself.
pub fn number(name: &str) -> Result<u32, GroupError> {
    match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => find(&std::fs::read_to_string(FILE)?, name).ok_or_else(|| GroupError::Unknown(name.to_owned())),
    }
}

/// A line is NAME:PASSWORD:NUMBER:USERS.
fn find(file: &str, name: &str) -> Option<u32> {
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    };
    file.lines().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_name_and_nothing_else_is() {
        let file = "root:x:0:\nadm:x:4:syslog\nbroken\nodd:x:many:\nspillway:x:990:a,b\n";
        assert_eq!((find(file, "adm"), find(file, "spillway")), (Some(4), Some(990)));
        for absent in ["", "x", "ad", "adm:x", "syslog", "broken", "odd"] {
            assert_eq!(find(file, absent), None, "{absent}");
        }
    }

    #[test]
    fn a_number_needs_no_file_and_an_unknown_group_is_named() {
        assert_eq!(number("77").unwrap(), 77);
        assert_eq!(number("root").unwrap(), 0);
        let error = number("no such group").unwrap_err().to_string();
        assert!(error.contains("'no such group'") && error.contains("a number"), "{error}");
    }
}
