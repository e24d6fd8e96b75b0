# policies: simulated (or measured) time of each policy against the physical floor. Reads compare.csv.
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
set ylabel "attention time of one layer, µs"
set yrange [0:top * 1.14]
set xrange [-0.7:n - 0.3]
set boxwidth 0.62
set xtics () noenhanced
do for [i=1:n] { set xtics add (word(names, i) i - 1) }
set key top right noenhanced
do for [o=1:n_outputs] {
    eval(open_output(o, "policies", 1100, 640))
    plot file using 0:(column("time_us")) with boxes lc rgb colour_bar title "time", \
         file using 0:(column("time_us")):(sprintf("%.0f", column("time_us"))) with labels offset 0,0.8 notitle, \
         floor_us with lines lw 2 dt 2 lc rgb colour_floor title sprintf("floor: no schedule beats %.0f µs", floor_us)
    unset output
}
