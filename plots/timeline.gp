# timeline: every SM over time, one panel a policy, all on the same time axis. Reads compare.csv and spans_POLICY.csv.
load scriptdir."/style.gp"
file = indir."/compare.csv"
if (is_missing(file)) { print "timeline.gp: ".file." is missing or empty: nothing to draw"; exit }
names = values_of(file, "policy")
times = values_of(file, "time_us")
n = words(names)
if (n == 0 || words(times) == 0) { print "timeline.gp: ".file." has no times: nothing to draw"; exit }
stats file using (column("time_us")) nooutput
# one slow policy must not press the others flat: the axis ends at 3 times the median, and panels say where they are cut
top = STATS_max < 3 * STATS_median ? STATS_max : 3 * STATS_median
columns = n > 6 ? 3 : n > 1 ? 2 : 1
rows = (n + columns - 1) / columns
height = 130.0 + 250 * rows
unset grid
set style fill solid 1 noborder
spans(i) = indir."/spans_".word(names, i).".csv"
# Slots that grid g uses on an SM share the SM's unit of height: "n0 n1 ..." by grid.
grid_slots(i) = system(sprintf("awk -F, 'NR>1{if($6+1>n[$1])n[$1]=$6+1;if($1>m)m=$1} END{for(g=0;g<=m;g++)printf \"%%d \",n[g]?n[g]:1}' '%s'", spans(i)))
slots_of(g) = real(word(slots, int(g) + 1))
# a box a span: x, y, xlow, xhigh, ylow, yhigh
draw(role) = sprintf("using (strcol('role') eq '%s' ? 0.5*(column('begin_ns')+column('end_ns'))/1e3 : NaN):(column('sm')+(column('slot')+0.5)/slots_of(column('grid'))):(column('begin_ns')/1e3):(column('end_ns')/1e3):(column('sm')+column('slot')/slots_of(column('grid'))):(column('sm')+(column('slot')+1)/slots_of(column('grid'))) with boxxyerror", role)
# the legend goes where there is room: the panel that ends first
shortest = 1
do for [i=1:n] { if (real(word(times, i)) < real(word(times, shortest))) { shortest = i } }
do for [o=1:n_outputs] {
    if (o == 2) { continue } # thousands of boxes: PNG and PDF only
    eval(open_output(o, "timeline", 1500, int(height)))
    set multiplot layout rows,columns margins 0.06,0.985,65/height,1-85/height spacing 0.055,88/height title sprintf("%s on %s: what each SM does", word(values_of(file, "workload"), 1), word(values_of(file, "gpu"), 1)) noenhanced
    do for [i=1:n] {
        if (is_missing(spans(i))) { continue }
        slots = grid_slots(i)
        stats spans(i) using (column("sm")) nooutput
        set xrange [0:top * 1.02]
        set yrange [0:STATS_max + 1]
        end_us = real(word(times, i))
        set title sprintf("%s: %.0f µs%s", word(names, i), end_us, end_us > top ? sprintf(" (drawn to %.0f)", top) : "") noenhanced offset 0,-0.7
        set xlabel (i > n - columns ? "time, µs" : "") offset 0,0.6
        set ylabel (i % columns == 1 || columns == 1 ? "SM" : "") offset 1.2,0
        if (i == shortest) { set key top right box opaque width 1 samplen 2 } else { unset key }
        eval(sprintf("plot '%s' %s fc rgb colour_prefill title 'prefill', '' %s fc rgb colour_decode title 'decode', '' %s fc rgb colour_merge title 'merge', %f with lines lw 0 notitle", spans(i), draw("prefill"), draw("decode"), draw("merge"), -1.0))
    }
    unset multiplot
    unset output
}
