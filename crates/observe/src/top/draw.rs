//! The picture: a view drawn into cells, for a terminal of any size from 80x24, and for `--once`.
//!
//! From the top: the title, memory, four sparklines, programs, donors, lenders, what is degraded, keys. What does not
//! fit is said ("3 more"), so a short screen never looks like a small machine.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, Widget};
use spillway_machine::size::human;

use super::controls::{Controls, KEYS};
use super::counts::Flow;
use super::model::View;
use super::rows::{Lender, Link, Program};
use super::words::{bytes, count, end_of, known_bytes, latency, start_of};

/// Title, memory, four sparklines and an empty line.
const HEAD_ROWS: u16 = 7;
/// The keys.
const FOOT_ROWS: u16 = 1;
/// Lenders and troubles that are shown at most on a screen; `--once` shows all.
const BRIEF_ROWS: usize = 3;
/// The words before a sparkline.
const SPARKLINE_WORDS: u16 = 38;

const HEADING: Style = Style::new().add_modifier(Modifier::BOLD).add_modifier(Modifier::REVERSED);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// What the frame around the figures says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caption {
    /// The machine's name.
    pub(crate) machine: String,
    /// Seconds between two looks.
    pub(crate) interval_seconds: f64,
}

/// Rows that show everything.
pub(crate) fn rows_of_all(view: &View) -> u16 {
    let tables = [view.programs.len().max(1), view.donors.len().max(1)];
    let lists = [view.lenders.len(), view.degraded.len()].map(|rows| if rows == 0 { 0 } else { rows + 1 });
    let rows = tables.iter().sum::<usize>() + 2 + lists.iter().sum::<usize>();
    HEAD_ROWS.saturating_add(u16::try_from(rows).unwrap_or(u16::MAX))
}

/// Draws a screen.
pub(crate) fn screen(view: &View, controls: &Controls, caption: &Caption, area: Rect, buffer: &mut Buffer) {
    let body = Rect { height: area.height.saturating_sub(FOOT_ROWS), ..area };
    picture(view, controls, caption, BRIEF_ROWS, body, buffer);
    foot(controls, Rect { y: body.bottom(), height: area.height - body.height, ..area }, buffer);
    if controls.shows_help {
        help(area, buffer);
    }
}

/// Draws everything but the keys, into an area of [`rows_of_all`] rows.
pub(crate) fn everything(view: &View, caption: &Caption, area: Rect, buffer: &mut Buffer) {
    picture(view, &Controls::default(), caption, usize::MAX, area, buffer);
}

fn picture(view: &View, controls: &Controls, caption: &Caption, brief: usize, area: Rect, buffer: &mut Buffer) {
    let mut rest = area;
    let head = take(&mut rest, HEAD_ROWS);
    self::head(view, controls, caption, head, buffer);
    let lists = listed(view, brief);
    let list_rows: usize = lists.iter().map(|(_, lines)| lines.len() + 1).sum();
    let tables = usize::from(rest.height).saturating_sub(list_rows);
    // Each gets what the other does not need, and at least half.
    let needed = view.programs.len().max(1) + 1;
    let donors = (view.donors.len().max(1) + 1).min(tables.saturating_sub(needed).max(tables / 2));
    programs(view, controls, take(&mut rest, row_count(tables - donors).min(program_rows(view, brief))), buffer);
    self::donors(view, take(&mut rest, row_count(donors)), buffer);
    for (title, lines) in lists {
        heading(title, take(&mut rest, 1), buffer);
        for (text, style) in lines {
            Line::styled(format!(" {text}"), style).render(take(&mut rest, 1), buffer);
        }
    }
}

/// On a screen the table has all the space that there is, so that what follows does not jump.
fn program_rows(view: &View, brief: usize) -> u16 {
    if brief == usize::MAX { row_count(view.programs.len().max(1) + 1) } else { u16::MAX }
}

fn row_count(rows: usize) -> u16 {
    u16::try_from(rows).unwrap_or(u16::MAX)
}

/// The upper rows of an area, which loses them.
fn take(area: &mut Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    let upper = Rect { height: rows, ..*area };
    (area.y, area.height) = (area.y + rows, area.height - rows);
    upper
}

fn heading(title: &str, area: Rect, buffer: &mut Buffer) {
    buffer.set_style(area, HEADING);
    Line::raw(title).render(area, buffer);
}

fn head(view: &View, controls: &Controls, caption: &Caption, mut area: Rect, buffer: &mut Buffer) {
    let order =
        format!("by {}{}", controls.choices.order.word(), if controls.choices.is_reversed { ", reversed" } else { "" });
    let filter = match (controls.is_typing, controls.choices.filter.as_str()) {
        (true, filter) => format!("  filter: {filter}_"),
        (false, "") => String::new(),
        (false, filter) => format!("  filter: {filter}"),
    };
    let paused = if controls.is_paused { "  HELD" } else { "" };
    let Caption { machine, interval_seconds } = caption;
    heading(
        &format!("spillway top  {machine}  every {interval_seconds} s  {order}{filter}{paused}"),
        take(&mut area, 1),
        buffer,
    );
    Line::raw(memory(view)).render(take(&mut area, 1), buffer);
    let Flow { pages_in, bytes_in, pages_out, bytes_out, p50_us, p99_us, .. } = &view.total;
    let passing =
        |words: &str, flow: f64, pages: f64| format!("{words} {:>10}/s {:>9} pages/s", bytes(flow), count(pages));
    let history = |value: fn(&Flow) -> f64| view.history.iter().map(|flow| value(flow) as u64).collect::<Vec<_>>();
    for (words, values) in [
        (passing("in  ", *bytes_in, *pages_in), history(|flow| flow.bytes_in)),
        (passing("out ", *bytes_out, *pages_out), history(|flow| flow.bytes_out)),
        (format!("page-in p50 {:>7}", latency(*p50_us)), history(|flow| flow.p50_us.unwrap_or(0.0) * 1e3)),
        (format!("page-in p99 {:>7}", latency(*p99_us)), history(|flow| flow.p99_us.unwrap_or(0.0) * 1e3)),
    ] {
        sparkline(&words, &values, take(&mut area, 1), buffer);
    }
}

fn memory(view: &View) -> String {
    let borrowed_bytes: u64 = view.programs.iter().map(|program| program.lent_bytes).sum();
    let lent_bytes: u64 = view.lenders.iter().map(|lender| lender.lent_bytes).sum();
    let machine = view.memory.map_or_else(String::new, |memory| {
        format!("memory {}, {} available; ", human(memory.total_bytes), human(memory.available_bytes))
    });
    format!("{machine}borrowed {}, lent to others {}", human(borrowed_bytes), human(lent_bytes))
}

/// Words, and the newest values at the right end of the line.
fn sparkline(words: &str, values: &[u64], area: Rect, buffer: &mut Buffer) {
    Line::raw(words).render(area, buffer);
    let columns = area.width.saturating_sub(SPARKLINE_WORDS);
    let shown = &values[values.len().saturating_sub(columns.into())..];
    let used = row_count(shown.len());
    let area = Rect { x: area.right() - used, width: used, ..area };
    Sparkline::default().data(shown).render(area, buffer);
}

/// A table with `rows` of which those from `first` on are shown, or what it says when there is none.
fn table<'a>(
    header: &[&'static str],
    widths: &[Constraint],
    rows: Vec<Row<'a>>,
    first: usize,
    nothing: &'a str,
    area: Rect,
    buffer: &mut Buffer,
) {
    if area.height == 0 {
        return;
    }
    let space = usize::from(area.height) - 1;
    let all = rows.len();
    let first = first.min(all.saturating_sub(space));
    // The last line says how many there are below.
    let is_cut = all - first > space;
    let shown = if is_cut { space.saturating_sub(1) } else { space };
    let header = Row::new(header.iter().copied().map(Cell::from)).style(HEADING);
    Table::new(rows.into_iter().skip(first).take(shown), widths.iter().copied()).header(header).render(area, buffer);
    let last = Rect { y: area.bottom() - 1, height: 1, ..area };
    if is_cut && space > 0 {
        Line::styled(format!(" {} more", all - first - shown), DIM).render(last, buffer);
    }
    if all == 0 && space > 0 {
        Line::styled(format!(" {nothing}"), DIM).render(Rect { y: area.y + 1, height: 1, ..area }, buffer);
    }
}

fn programs(view: &View, controls: &Controls, area: Rect, buffer: &mut Buffer) {
    let right = Constraint::Length;
    let widths = [Constraint::Min(15), right(6), right(8), right(8), right(8), right(8), right(7), right(6), right(6)];
    let header =
        ["PROGRAM/DEVICE", "BY", "   LOCAL", "    LENT", "    IN/S", "   OUT/S", " DISK/S", "   P50", "   P99"];
    // A row is 80 columns wide with 8 gaps; the name takes what is left.
    let name_columns = usize::from(area.width.saturating_sub(57 + 8));
    let row = |program: &Program| {
        let Program { flow, .. } = program;
        let name = start_of(&format!("{}{}", if program.is_well { "" } else { "!" }, program.name), name_columns);
        let cells = [
            name,
            program.kind.to_owned(),
            format!("{:>8}", known_bytes(program.local_bytes)),
            format!("{:>8}", human(program.lent_bytes)),
            format!("{:>8}", bytes(flow.bytes_in)),
            format!("{:>8}", bytes(flow.bytes_out)),
            format!("{:>7}", bytes(flow.bytes_from_disk)),
            format!("{:>6}", latency(flow.p50_us)),
            format!("{:>6}", latency(flow.p99_us)),
        ];
        Row::new(cells).style(if program.is_well { Style::new() } else { BAD })
    };
    let rows = view.programs.iter().map(row).collect();
    table(&header, &widths, rows, controls.scrolled, "nothing borrows memory here", area, buffer);
}

fn donors(view: &View, area: Rect, buffer: &mut Buffer) {
    let columns = Constraint::Length;
    let widths = [
        Constraint::Min(20),
        columns(12),
        columns(10),
        columns(4),
        columns(5),
        columns(6),
        columns(6),
        Constraint::Min(9),
    ];
    let header = ["DONOR", "OF", "STATE", "VIA", "SLABS", "   P50", "   P99", "NOTE"];
    let spare = usize::from(area.width.saturating_sub(80));
    let row = |link: &Link| {
        let is_well = link.state == "connected" && link.note.is_empty();
        let cells = [
            end_of(&link.donor, 20 + spare / 2),
            start_of(&link.of, 12),
            link.state.clone(),
            link.transport.clone(),
            format!("{:>5}", link.slabs),
            format!("{:>6}", latency(link.p50_us)),
            format!("{:>6}", latency(link.p99_us)),
            link.note.clone(),
        ];
        Row::new(cells).style(if is_well { Style::new() } else { BAD })
    };
    table(&header, &widths, view.donors.iter().map(row).collect(), 0, "no donors are used", area, buffer);
}

/// A heading and its lines.
type Listed = (&'static str, Vec<(String, Style)>);

/// What is told in lines: lenders, and what is degraded; at most `brief` of each.
fn listed(view: &View, brief: usize) -> Vec<Listed> {
    let lenders =
        view.lenders.iter().map(|lender| (lends(lender), if lender.recalls_overdue > 0 { BAD } else { Style::new() }));
    let troubles = view.degraded.iter().map(|trouble| (trouble.clone(), BAD));
    let mut lists =
        vec![("LENDS", shortened(lenders.collect(), brief)), ("DEGRADED", shortened(troubles.collect(), brief))];
    lists.retain(|(_, lines)| !lines.is_empty());
    lists
}

fn lends(lender: &Lender) -> String {
    let draining = if lender.is_draining { ", draining" } else { "" };
    // Rare: a drain was undone.
    let withdrawn = match lender.recalls_withdrawn {
        0 => String::new(),
        withdrawn => format!(", withdrawn {withdrawn}"),
    };
    format!(
        "{}: {} of {} lent to {}; recalled {}, returned {}{withdrawn}, overdue {}; {} free{draining}",
        lender.name,
        human(lender.lent_bytes),
        human(lender.quota_bytes),
        lender.borrowers,
        lender.recalls_asked,
        lender.recalls_returned,
        lender.recalls_overdue,
        human(lender.free_bytes),
    )
}

fn shortened(mut lines: Vec<(String, Style)>, brief: usize) -> Vec<(String, Style)> {
    let all = lines.len();
    if all > brief {
        lines.truncate(brief - 1);
        lines.push((format!("{} more: spillway status", all + 1 - brief), DIM));
    }
    lines
}

fn foot(controls: &Controls, area: Rect, buffer: &mut Buffer) {
    let keys = if controls.is_typing {
        " type a filter   Enter keep   Esc drop"
    } else {
        " h help   s order   r reverse   / filter   Space hold   q quit"
    };
    Line::styled(keys, DIM).render(area, buffer);
}

fn help(area: Rect, buffer: &mut Buffer) {
    let mut lines: Vec<Line<'_>> = KEYS.iter().map(|(keys, does)| Line::raw(format!(" {keys:<10} {does}"))).collect();
    lines.push(Line::raw(""));
    lines.extend(
        [
            " LOCAL  memory here       LENT   memory at donors or on the disk",
            " IN/S   pages that come   DISK/S of them, from the copy on disk",
            " P50    half came sooner  P99    99 of 100 came sooner; in red: degraded",
        ]
        .map(Line::raw),
    );
    let (width, height) = (area.width.min(76), area.height.min(row_count(lines.len() + 2)));
    let middle = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    Clear.render(middle, buffer);
    Paragraph::new(lines).block(Block::bordered().title(" keys ")).render(middle, buffer);
}

/// A picture as text, without spaces at the ends of lines.
pub(crate) fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for line in buffer.content().chunks(buffer.area.width.max(1).into()) {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
