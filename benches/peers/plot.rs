//! Plots, as SVG: bars for one figure of everybody, lines for curves.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::table::number;

const OURS: RGBColor = RGBColor(0, 114, 178);
const REFERENCE: RGBColor = RGBColor(150, 150, 150);
const OTHERS: RGBColor = RGBColor(213, 148, 66);
const INK: RGBColor = RGBColor(40, 40, 40);
const OURS_BY_SOCKET: RGBColor = RGBColor(86, 180, 233);
/// Of the others in a plot of curves: distinct for people who do not tell red from green, too.
const SERIES: [RGBColor; 5] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(120, 94, 240),
    RGBColor(230, 159, 0),
];

const WIDTH: u32 = 820;
const BAR: i32 = 26;

type Failed = Box<dyn std::error::Error>;

fn color(name: &str) -> RGBColor {
    match name {
        name if name.starts_with("walrelay") => OURS,
        name if name.starts_with("pg_recvlogical") => REFERENCE,
        _ => OTHERS,
    }
}

fn of_series(at: usize, name: &str) -> RGBColor {
    match name {
        "walrelay" => OURS,
        "walrelay-socket" => OURS_BY_SOCKET,
        name if name.starts_with("pg_recvlogical") => REFERENCE,
        _ => SERIES[at % SERIES.len()],
    }
}

fn text(size: i32, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size)
        .into_font()
        .color(&INK)
        .pos(Pos::new(horizontal, VPos::Center))
}

/// One bar each, the first on top.
pub(crate) fn bars(
    file: &Path,
    title: &str,
    unit: &str,
    values: &[(String, f64)],
) -> Result<(), Failed> {
    let height = 56 + BAR * i32::try_from(values.len())?;
    let area = SVGBackend::new(file, (WIDTH, u32::try_from(height)?)).into_drawing_area();
    area.fill(&WHITE)?;
    head(&area, title, unit)?;
    let left = 190;
    let right = 110;
    let most = values
        .iter()
        .map(|(_, value)| *value)
        .fold(f64::MIN_POSITIVE, f64::max);
    let room = f64::from(i32::try_from(WIDTH)? - left - right);
    for (at, (name, value)) in values.iter().enumerate() {
        let top = 46 + BAR * i32::try_from(at)?;
        let end = left + (room * value / most).round().max(1.0) as i32;
        area.draw(&Rectangle::new(
            [(left, top + 3), (end, top + BAR - 4)],
            color(name).filled(),
        ))?;
        area.draw(&Text::new(
            name.clone(),
            (left - 8, top + BAR / 2),
            text(14, HPos::Right),
        ))?;
        let decimals = if most < 100.0 { 1 } else { 0 };
        area.draw(&Text::new(
            number(Some(*value), decimals),
            (end + 6, top + BAR / 2),
            text(14, HPos::Left),
        ))?;
    }
    area.present()?;
    Ok(())
}

fn head(area: &DrawingArea<SVGBackend<'_>, Shift>, title: &str, unit: &str) -> Result<(), Failed> {
    area.draw(&Text::new(title.to_owned(), (12, 16), text(17, HPos::Left)))?;
    area.draw(&Text::new(unit.to_owned(), (12, 36), text(12, HPos::Left)))?;
    Ok(())
}

/// A curve by its name.
pub(crate) type Series = (String, Vec<(f64, f64)>);

/// Curves over a logarithmic x; y is logarithmic as well where values are far apart.
pub(crate) fn curves(
    file: &Path,
    title: &str,
    (x, y): (&str, &str),
    series: &[Series],
) -> Result<(), Failed> {
    let area = SVGBackend::new(file, (WIDTH, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let over = |pick: fn(&(f64, f64)) -> f64| {
        let values = series
            .iter()
            .flat_map(|(_, points)| points.iter().map(pick));
        values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    let (x_low, x_high) = over(|point| point.0);
    let (y_low, y_high) = over(|point| point.1);
    let apart = y_high / y_low.max(f64::MIN_POSITIVE) > 20.0;
    let mut chart = ChartBuilder::on(&area);
    chart
        .caption(title, ("sans-serif", 17))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(42)
        .y_label_area_size(70);
    let xs: Range<f64> = x_low..x_high * 1.05;
    // The two are of different types, and nothing else differs.
    macro_rules! drawn {
        ($ys:expr) => {{
            let mut chart = chart.build_cartesian_2d(xs.log_scale(), $ys)?;
            chart
                .configure_mesh()
                .max_light_lines(0)
                .y_labels(6)
                .x_desc(x)
                .y_desc(y)
                .x_label_formatter(&short)
                .y_label_formatter(&short)
                .draw()?;
            for (at, (name, points)) in series.iter().enumerate() {
                let color = of_series(at, name);
                chart.draw_series(
                    points
                        .iter()
                        .map(|point| Circle::new(*point, 3, color.filled())),
                )?;
                chart
                    .draw_series(LineSeries::new(
                        points.iter().copied(),
                        color.stroke_width(2),
                    ))?
                    .label(name.clone())
                    .legend(move |(x, y)| {
                        PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                    });
            }
            chart
                .configure_series_labels()
                .position(place_of_names(series))
                .background_style(WHITE.mix(0.85))
                .border_style(INK.mix(0.3))
                .draw()?;
        }};
    }
    if apart {
        drawn!((y_low * 0.8..y_high * 1.3).log_scale());
    } else {
        drawn!(0.0..y_high * 1.2);
    }
    area.present()?;
    Ok(())
}

/// Where the curves are not.
fn place_of_names(series: &[Series]) -> SeriesLabelPosition {
    let ends = series
        .first()
        .and_then(|(_, points)| points.first().zip(points.last()));
    match ends {
        Some((first, last)) if last.1 < first.1 / 2.0 => SeriesLabelPosition::UpperRight,
        _ => SeriesLabelPosition::UpperLeft,
    }
}

/// A number for an axis.
fn short(value: &f64) -> String {
    if *value >= 10.0 {
        number(Some(*value), 0)
    } else {
        format!("{value:.1}")
    }
}
