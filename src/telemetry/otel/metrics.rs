//! The metrics of `/metrics` as OTLP has them: the same names, labels and values, read from the same text.

use std::str::FromStr;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};

use super::span::text as attribute;

/// When a value was taken, and since when counters count; nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Period {
    pub(super) since: u64,
    pub(super) until: u64,
}

/// The metrics in `text`, which is in the OpenMetrics text format.
pub(super) fn metrics(text: &str, period: Period) -> Vec<Metric> {
    let (mut metrics, mut help, mut begun) = (Vec::new(), "", None);
    for line in text.lines() {
        match line.strip_prefix("# ").map(|line| line.splitn(3, ' ').collect::<Vec<_>>()).as_deref() {
            Some(["HELP", _, of_next]) => help = of_next,
            Some(["TYPE", name, kind]) => begun = Some(metric(name, kind, help)),
            Some(_) => {}
            None => {
                let Some(sample) = Sample::read(line) else { continue };
                // A metric without a value is left out.
                metrics.extend(begun.take());
                if let Some(Metric { data: Some(data), .. }) = metrics.last_mut() {
                    add(data, &sample, period);
                }
            }
        }
    }
    metrics
}

/// A metric without values. Its name is that of its samples.
fn metric(name: &str, kind: &str, help: &str) -> Metric {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let (ending, data) = match kind {
        "counter" => ("_total", Data::Sum(Sum { aggregation_temporality, is_monotonic: true, ..Sum::default() })),
        "histogram" => ("", Data::Histogram(Histogram { aggregation_temporality, ..Histogram::default() })),
        "info" => ("_info", Data::Gauge(Gauge::default())),
        _ => ("", Data::Gauge(Gauge::default())),
    };
    let unit = match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some(_) | None => "",
    };
    let (name, unit, description) = (format!("{name}{ending}"), unit.to_owned(), help.to_owned());
    Metric { name, description, unit, data: Some(data), ..Metric::default() }
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<KeyValue>,
    /// The label of a bucket.
    bound: Option<String>,
    value: &'a str,
}

impl<'a> Sample<'a> {
    fn read(line: &'a str) -> Option<Sample<'a>> {
        let (name, mut rest) = line.split_at_checked(line.find(['{', ' '])?)?;
        let (mut labels, mut bound) = (Vec::new(), None);
        while let Some((label, after)) = rest.strip_prefix(['{', ',']).and_then(|rest| rest.split_once("=\"")) {
            let (value, after) = unquoted(after)?;
            match label {
                "le" => bound = Some(value),
                _ => labels.push(attribute(label, value)),
            }
            rest = after;
        }
        Some(Sample { name, labels, bound, value: rest.trim_start_matches('}').split_whitespace().next()? })
    }

    fn number<N: FromStr + Default>(&self) -> N {
        self.value.parse().unwrap_or_default()
    }
}

/// The value of a label up to its quotation mark, and what follows that.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.chars());
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(characters.next().map(|escaped| if escaped == 'n' { '\n' } else { escaped })?),
            character => value.push(character),
        }
    }
}

fn add(data: &mut Data, sample: &Sample<'_>, Period { since, until }: Period) {
    let (points, start_time_unix_nano) = match data {
        Data::Gauge(gauge) => (&mut gauge.data_points, 0),
        Data::Sum(sum) => (&mut sum.data_points, since),
        Data::Histogram(histogram) => {
            return add_to_histogram(&mut histogram.data_points, sample, Period { since, until });
        }
        Data::ExponentialHistogram(_) | Data::Summary(_) => return,
    };
    points.push(NumberDataPoint {
        attributes: sample.labels.clone(),
        start_time_unix_nano,
        time_unix_nano: until,
        value: Some(sample.value.parse().map_or_else(|_| Value::AsDouble(sample.number()), Value::AsInt)),
        ..NumberDataPoint::default()
    });
}

/// A bucket of OTLP has only what is above the one before it.
fn add_to_histogram(points: &mut Vec<HistogramDataPoint>, sample: &Sample<'_>, Period { since, until }: Period) {
    if points.last().is_none_or(|point| point.attributes != sample.labels) {
        let mut point = HistogramDataPoint { attributes: sample.labels.clone(), ..HistogramDataPoint::default() };
        (point.start_time_unix_nano, point.time_unix_nano) = (since, until);
        points.push(point);
    }
    let Some(point) = points.last_mut() else { return };
    match (&sample.bound, sample.name.rsplit('_').next()) {
        (Some(bound), _) => {
            let below: u64 = point.bucket_counts.iter().sum();
            point.bucket_counts.push(sample.number::<u64>().saturating_sub(below));
            point.explicit_bounds.extend(bound.parse().ok().filter(|bound: &f64| bound.is_finite()));
        }
        (None, Some("sum")) => point.sum = Some(sample.number()),
        (None, Some("count")) => point.count = sample.number(),
        (None, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::{Metrics, RowState};

    const PERIOD: Period = Period { since: 1, until: 2 };

    fn named<'m>(metrics: &'m [Metric], name: &str) -> &'m Metric {
        metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn a_sample_of_the_text_has_a_point_of_the_same_name_and_value() {
        let metrics = Metrics::known();
        metrics.acked_events.inc_by(7);
        metrics.set_rows(RowState::Failed, "a\"b\\c\nd,e={}", Some(3));
        metrics.observe_commit_to_ack(0, 20_000);
        metrics.observe_commit_to_ack(0, 900_000_000);
        let text = metrics.encode().unwrap();
        let exported = super::metrics(&text, PERIOD);

        let acked = named(&exported, "walrelay_acked_events_total");
        let Some(Data::Sum(sum)) = &acked.data else { panic!("{acked:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == AggregationTemporality::Cumulative as i32);
        let point = &sum.data_points[0];
        assert_eq!((point.value, point.start_time_unix_nano, point.time_unix_nano), (Some(Value::AsInt(7)), 1, 2));

        let Some(Data::Gauge(failed)) = &named(&exported, "walrelay_failed_rows").data else { panic!("no gauge") };
        assert_eq!(failed.data_points.len(), 2);
        let has = |value| failed.data_points.iter().any(|point| point.attributes == [attribute("outbox", value)]);
        assert!(has("") && has("a\"b\\c\nd,e={}"), "{failed:?}");

        let commit = named(&exported, "walrelay_commit_to_ack_seconds");
        let Some(Data::Histogram(histogram)) = &commit.data else { panic!("{commit:?}") };
        let [point] = histogram.data_points.as_slice() else { panic!("{histogram:?}") };
        assert_eq!((point.count, point.sum, commit.unit.as_str()), (2, Some(900.02), "s"));
        assert_eq!((point.bucket_counts.len(), point.explicit_bounds.len()), (18, 17));
        let filled: Vec<_> = point.bucket_counts.iter().enumerate().filter(|(_, count)| **count > 0).collect();
        assert_eq!(filled, [(4, &1), (17, &1)]);

        for (name, unit) in
            [("walrelay_build_info", ""), ("walrelay_acked_bytes_total", "By"), ("walrelay_uptime_seconds", "s")]
        {
            assert_eq!(named(&exported, name).unit, unit, "{name}");
        }
        assert!(exported.iter().all(|metric| !metric.description.is_empty()));
    }

    #[test]
    fn a_metric_without_a_value_and_a_line_that_is_none_are_left_out() {
        let text =
            "# HELP a A.\n# TYPE a gauge\n# HELP b B.\n# TYPE b gauge\nb\nb{x=\"1\nb{x=\"1\"} 2.5\nb 1e300\n# EOF\n";
        let exported = metrics(text, PERIOD);
        let [metric] = exported.as_slice() else { panic!("{exported:?}") };
        let Some(Data::Gauge(gauge)) = &metric.data else { panic!("{metric:?}") };
        let values: Vec<_> = gauge.data_points.iter().map(|point| point.value).collect();
        assert_eq!(values, [Some(Value::AsDouble(2.5)), Some(Value::AsDouble(1e300))]);
    }
}
