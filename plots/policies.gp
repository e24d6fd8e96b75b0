# policies: simulated (or measured) time of each policy against the physical floor, one bar a policy. Reads compare.csv.
load scriptdir."/style.gp"
file = indir."/compare.csv"
if (is_missing(file)) { print "policies.gp: ".file." is missing or empty: nothing to draw"; exit }
names = values_of(file, "policy")
n = words(names)
if (n == 0) { print "policies.gp: ".file." has no rows: nothing to draw"; exit }
floor_us = first_float(values_of(file, "limit_us"))
workload = word(values_of(file, "workload"), 1)
gpu = word(values_of(file, "gpu"), 1)
stats file using (column("time_us")) nooutput
if (STATS_records == 0) { print "policies.gp: no times in ".file.": nothing to draw"; exit }
top = STATS_max
set title sprintf("%s on %s", workload, gpu) noenhanced
set xlabel "attention time of one layer, µs"
set xrange [0:top * 1.12]
set yrange [n - 0.4:-0.6]
set grid x lc rgb "#d8d8d8" lw 1
unset grid
set ytics () noenhanced
do for [i=1:n] { set ytics add (word(names, i) i - 1) }
set key below center horizontal noenhanced
set arrow 1 from floor_us, graph 0 to floor_us, graph 1 nohead lw 2 dt 2 lc rgb colour_floor front
do for [o=1:n_outputs] {
    eval(open_output(o, "policies", 1100, 170 + 34 * n))
    plot file using (0.5 * column("time_us")):0:(0.0):(column("time_us")):($0 - 0.33):($0 + 0.33) with boxxyerror lc rgb colour_bar title "time", \
         file using (column("time_us")):0:(sprintf(" %.0f", column("time_us"))) with labels left notitle, \
         NaN with lines lw 2 dt 2 lc rgb colour_floor title sprintf("floor: no schedule beats %.0f µs", floor_us)
    unset output
}
