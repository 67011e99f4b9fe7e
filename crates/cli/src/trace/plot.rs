//! `spillway trace plot`: pictures of a recorded trace.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::Path;

use spillway_console::failure::Failure;
use spillway_console::output;
use spillway_console::output_file::OutputFile;
use spillway_machine::size::human;
use spillway_plot::axis::Axis;
use spillway_plot::cloud::Cloud;
use spillway_plot::svg::{Anchor, COLOURS, Svg, colour};
use spillway_policy::prefetch::PageNumber;
use spillway_policy::trace::space_of;

use super::loaded::Loaded;
use super::regions::Regions;
use crate::arguments::trace::{PlotArguments, PlotSubject};

/// Where the points are: from the left and the top, and how large their part of the picture is. All in pixels.
const LEFT: f64 = 150.0;
const TOP: f64 = 48.0;
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 480.0;
/// Room for the legend.
const RIGHT: f64 = 190.0;
/// Room for the scale of times.
const BOTTOM: f64 = 56.0;

const LEGEND_LINE: f64 = 18.0;
const LABEL_SIZE: u32 = 10;

/// The distances of the second picture go to 2 to the power of this: all of a process.
const DISTANCE_BITS: usize = 36;

/// Draws.
pub(crate) fn execute(arguments: &PlotArguments) -> Result<(), Failure> {
    if arguments.output.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage("the picture would go to the terminal; name a file: --output trace.svg"));
    }
    let ending = arguments.output.as_ref().and_then(|path| path.extension());
    if let Some(ending) = ending.filter(|ending| !ending.eq_ignore_ascii_case("svg")) {
        let ending = ending.display();
        return Err(Failure::usage(format!(
            "the picture is SVG, not {ending}; name the file with .svg, and convert it"
        )));
    }
    let canonical = arguments.output.as_ref().and_then(|path| path.canonicalize().ok());
    if canonical.is_some() && canonical == arguments.file.canonicalize().ok() {
        return Err(Failure::usage("the picture would overwrite the trace; name another file with --output"));
    }
    let loaded = Loaded::read(&arguments.file)?;
    let picture = match arguments.of {
        PlotSubject::Map => map(&loaded),
        PlotSubject::Distances => distances(&loaded),
    };
    match &arguments.output {
        None => output::text(&picture),
        Some(path) => write(path, &picture),
    }
}

/// As all that is written where a user says: no link of another user is followed.
fn write(path: &Path, picture: &str) -> Result<(), Failure> {
    let file = OutputFile::open(path).map_err(Failure::failed)?;
    file.fill(|file| file.write_all(picture.as_bytes())).map_err(|error| Failure::during(path.display(), error))?;
    Ok(())
}

fn title(loaded: &Loaded, what: &str) -> String {
    format!("{}: {} {}, {what}", loaded.overview.file, loaded.overview.events, loaded.overview.kind.replace('-', " "))
}

/// Threads by their number of events, the busiest first; the last colour is for all that have none of their own.
fn ranks(loaded: &Loaded) -> Vec<(u32, u64)> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    loaded.accesses.as_slice().iter().for_each(|access| *counts.entry(access.thread).or_default() += 1);
    let mut ranks: Vec<_> = counts.into_iter().collect();
    ranks.sort_by_key(|(thread, count)| (std::cmp::Reverse(*count), *thread));
    ranks
}

/// Pages over time, in a colour for each thread.
fn map(loaded: &Loaded) -> String {
    let accesses = &loaded.accesses;
    let pages: BTreeSet<PageNumber> =
        accesses.as_slice().iter().map(|access| accesses.virtual_page(access.page)).collect();
    let regions = Regions::of(&pages.into_iter().collect::<Vec<_>>());
    let ranks = ranks(loaded);
    let colours: BTreeMap<u32, usize> =
        ranks.iter().enumerate().map(|(rank, (thread, _))| (*thread, rank.min(COLOURS.len() - 1))).collect();
    let tick_seconds = accesses.kind().tick_ns() as f64 / 1e9;
    let is_timed = loaded.overview.seconds.is_some();
    let unit = if is_timed { tick_seconds } else { 1.0 };
    let ticks: u64 = accesses.as_slice().iter().map(|access| u64::from(access.ticks)).sum();
    let axis = Axis::over([ticks as f64 * unit].into_iter());
    let mut clouds = vec![Cloud::default(); COLOURS.len()];
    let mut time = 0;
    for access in accesses.as_slice() {
        time += u64::from(access.ticks);
        let x = LEFT + WIDTH * axis.place(time as f64 * unit);
        let y = height_of(regions.place(accesses.virtual_page(access.page)));
        clouds[colours[&access.thread]].mark((x, y));
    }
    let mut svg = frame(&title(loaded, "pages over time"));
    draw_regions(&mut svg, &regions, loaded.overview.address_spaces > 1);
    draw_times(&mut svg, &axis, if is_timed { "seconds" } else { "touches" });
    // The busiest below, so that it hides none.
    for (index, cloud) in clouds.iter().enumerate().filter(|(_, cloud)| !cloud.is_empty()) {
        svg.path(&cloud.path(), colour(index), 1.4, &legend(&ranks, index));
    }
    draw_legend(&mut svg, &(0..ranks.len().min(COLOURS.len())).map(|index| legend(&ranks, index)).collect::<Vec<_>>());
    svg.finish()
}

fn height_of(place: f64) -> f64 {
    TOP + HEIGHT * (1.0 - place)
}

fn frame(title: &str) -> Svg {
    let mut svg = Svg::new(LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    svg.text((LEFT, 24.0), Anchor::Start, 14, title);
    svg
}

fn legend(ranks: &[(u32, u64)], index: usize) -> String {
    let rest = &ranks[index..];
    if index == COLOURS.len() - 1 && rest.len() > 1 {
        let count: u64 = rest.iter().map(|(_, count)| count).sum();
        return format!("{} others ({count})", rest.len());
    }
    let (thread, count) = rest[0];
    format!("thread {thread} ({count})")
}

fn draw_legend(svg: &mut Svg, names: &[String]) {
    for (index, name) in names.iter().enumerate() {
        let (x, y) = (LEFT + WIDTH + 14.0, TOP + LEGEND_LINE * index as f64);
        svg.rectangle((x, y), (11.0, 11.0), colour(index), name);
        svg.text((x + 17.0, y + 10.0), Anchor::Start, 12, name);
    }
}

/// A line between regions, and the address and size of each.
fn draw_regions(svg: &mut Svg, regions: &Regions, has_several_spaces: bool) {
    for region in regions.all() {
        let y = height_of(region.place.0);
        svg.line((LEFT, y), (LEFT + WIDTH, y), "#ddd", 1.0);
        let (space, page) = space_of(region.first);
        let space = if has_several_spaces { format!("{space}: ") } else { String::new() };
        let label = format!("{space}{:#x}, {}", page.0 * 4096, human(region.pages() * 4096));
        svg.text((LEFT - 6.0, y - 2.0), Anchor::End, LABEL_SIZE, &label);
    }
    svg.line((LEFT, TOP), (LEFT + WIDTH, TOP), "#ddd", 1.0);
}

fn draw_times(svg: &mut Svg, axis: &Axis, unit: &str) {
    for tick in axis.ticks() {
        let x = LEFT + WIDTH * axis.place(tick);
        svg.line((x, TOP + HEIGHT), (x, TOP + HEIGHT + 5.0), "#888", 1.0);
        svg.text((x, TOP + HEIGHT + 20.0), Anchor::Middle, 11, &rounded(tick));
    }
    svg.text((LEFT + WIDTH / 2.0, TOP + HEIGHT + 42.0), Anchor::Middle, 12, unit);
}

/// Without the noise of binary fractions.
fn rounded(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The part of the distances that are at most 2 to the power of each index; none without a distance.
fn cumulative(distances: impl Iterator<Item = u64>) -> Vec<f64> {
    let (mut counts, mut all) = ([0_u64; DISTANCE_BITS + 1], 0_u64);
    for distance in distances {
        counts[(distance.max(1).next_power_of_two().ilog2() as usize).min(DISTANCE_BITS)] += 1;
        all += 1;
    }
    let mut so_far = 0_u64;
    let parts = counts.iter().map(|count| {
        so_far += count;
        so_far as f64 / all as f64
    });
    if all == 0 { Vec::new() } else { parts.collect() }
}

/// How far each fault is from the one before it, of its process and of its thread.
fn distances(loaded: &Loaded) -> String {
    let accesses = &loaded.accesses;
    let apart = |by_thread: bool| {
        let mut last: BTreeMap<(u32, u32), PageNumber> = BTreeMap::new();
        let distance = move |access: &spillway_policy::replay::accesses::Access| {
            let page = accesses.virtual_page(access.page);
            let key = (accesses.space(access.page), if by_thread { access.thread } else { 0 });
            last.insert(key, page).map(|before| page.0.abs_diff(before.0))
        };
        cumulative(accesses.as_slice().iter().filter_map(distance))
    };
    let mut svg = frame(&title(loaded, "by their distance from the one before"));
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        svg.line((LEFT, height_of(part)), (LEFT + WIDTH, height_of(part)), "#ddd", 1.0);
        svg.text((LEFT - 6.0, height_of(part) + 4.0), Anchor::End, 11, &format!("{:.0} %", 100.0 * part));
    }
    let x_of = |bits: usize| LEFT + WIDTH * bits as f64 / DISTANCE_BITS as f64;
    for bits in (0..=DISTANCE_BITS).step_by(4) {
        let label = if bits == 0 { "next page".to_owned() } else { human(4096 << bits) };
        svg.text((x_of(bits), TOP + HEIGHT + 20.0), Anchor::Middle, 11, &label);
    }
    svg.text((LEFT + WIDTH / 2.0, TOP + HEIGHT + 42.0), Anchor::Middle, 12, "at most so far from the fault before");
    let lines = [("of its process", apart(false)), ("of its thread", apart(true))];
    for (index, (_, parts)) in lines.iter().enumerate() {
        for (bits, pair) in parts.windows(2).enumerate() {
            let (from, to) = ((x_of(bits), height_of(pair[0])), (x_of(bits + 1), height_of(pair[1])));
            svg.line(from, to, colour(index), 2.0);
        }
    }
    draw_legend(&mut svg, &lines.map(|(name, _)| name.to_owned()));
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::loaded::tests::loaded;

    #[test]
    fn a_map_has_each_thread_in_its_colour() {
        let trace = loaded((0..3000).map(|step| (1, step as u32 % 12, 1000 + step))).unwrap();
        let svg = map(&trace);
        assert_eq!(svg.matches("<path").count(), COLOURS.len());
        assert!(svg.contains("thread 0 (250)") && svg.contains("5 others (1250)"), "{svg}");
        assert!(svg.contains("0x3e8000, 11.7 MiB") && svg.contains("seconds"), "{svg}");
    }

    #[test]
    fn a_picture_is_written_through_no_link_of_another_user() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("a.svg"), directory.path().join("b.svg"));
        write(&file, "<svg/>").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "<svg/>");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
            write(&link, "other").unwrap_err();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "<svg/>");
        }
        write(&directory.path().join("missing/c.svg"), "").unwrap_err();
    }

    #[test]
    fn a_map_of_many_events_stays_small() {
        let few = map(&loaded((0..20_000).map(|step| (1, 1, step * 7919 % 100_000))).unwrap());
        assert!(few.len() < 400_000, "{} bytes", few.len());
    }

    #[test]
    fn address_spaces_are_told_apart_only_if_there_are_several() {
        assert!(map(&loaded([(1, 1, 16), (2, 2, 16)]).unwrap()).contains("1: 0x10000, 4 KiB"));
        assert!(map(&loaded([(1, 1, 16), (1, 2, 16)]).unwrap()).contains(">0x10000, 4 KiB"));
    }

    #[test]
    fn threads_have_shorter_distances_than_their_process() {
        let steps = (0..1000).map(|step| (1, step as u32 % 2, step / 2 + step % 2 * 4096));
        let svg = distances(&loaded(steps).unwrap());
        assert!(svg.contains("of its thread") && svg.contains("next page") && svg.contains("<line"));
        assert_eq!(cumulative([1, 1, 2, 1 << 40].into_iter())[..2], [0.5, 0.75]);
        assert_eq!(cumulative([1, 3].into_iter())[DISTANCE_BITS], 1.0);
        assert!(cumulative(std::iter::empty()).is_empty());
    }

    #[test]
    fn numbers_are_round() {
        assert_eq!([rounded(0.0), rounded(0.1 + 0.2), rounded(20.0)], ["0", "0.3", "20"]);
    }
}
