//! What is wrong with the members of a cluster, for people.

use spillway_fabric::membership::Membership;
use spillway_report::cluster::MemberReport;

/// Wire versions that are told: more than a line holds.
const VERSIONS_TOLD_MAX: usize = 8;

/// What is wrong with the members, for people.
pub(super) fn warnings(membership: &Membership, members: &[MemberReport]) -> Vec<String> {
    let mut warnings: Vec<String> = membership
        .twins()
        .into_iter()
        .map(|(machine, addresses)| {
            let places: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            format!(
                "the machines at {} have the same identity {machine}: remove the identity file of all but one, and \
                 start their agents again",
                places.join(" and ")
            )
        })
        .collect();
    let is_living = |member: &&MemberReport| ["alive", "draining", "suspect"].contains(&member.state.as_str());
    let mut versions: Vec<u16> = members.iter().filter(is_living).filter_map(|member| member.wire_version).collect();
    versions.sort_unstable();
    versions.dedup();
    versions.truncate(VERSIONS_TOLD_MAX);
    if versions.len() > 1 {
        warnings.push(format!(
            "machines speak the wire versions {versions:?} and do not lend to each other: install one release on all"
        ));
    }
    warnings
}
