# work: how much each CTA (or queue item) carries, longest first; a flat line is a balanced plan. Reads compare.csv and
# work_POLICY.csv.
load scriptdir."/style.gp"
file = indir."/compare.csv"
if (is_missing(file)) { print "work.gp: ".file." is missing or empty: nothing to draw"; exit }
names = values_of(file, "policy")
imbalance = values_of(file, "imbalance")
n = words(names)
if (n == 0) { print "work.gp: ".file." has no rows: nothing to draw"; exit }
work(i) = indir."/work_".word(names, i).".csv"
sorted(i) = sprintf("< tail -n +2 '%s' | cut -d, -f4 | sort -gr", work(i))
array counts[n]
drawn = 0
do for [i=1:n] { counts[i] = is_missing(work(i)) ? 0 : int(system(sprintf("tail -n +2 '%s' | wc -l", work(i)))); drawn = drawn + (counts[i] > 0) }
if (drawn == 0) { print "work.gp: no work_*.csv with rows: nothing to draw"; exit }
label(i) = sprintf("%s: %d CTAs, imbalance %.2f", word(names, i), counts[i], i <= words(imbalance) ? real(word(imbalance, i)) : NaN)
set title sprintf("%s: work of each CTA", word(values_of(file, "workload"), 1)) noenhanced
set xlabel "share of CTAs, longest first"
set ylabel "work alone on an SM, µs"
set logscale y
set xrange [0:1]
set key outside right top noenhanced samplen 2
do for [o=1:n_outputs] {
    eval(open_output(o, "work", 1400, 700))
    plot for [i=1:n] (counts[i] > 0 ? sorted(i) : "< echo") using (counts[i] > 1 ? $0 / (counts[i] - 1.0) : 0):($1 / 1e3) with steps lw 2.5 dt dashes[(i - 1) / 8 % 5 + 1] lc rgb colours[(i - 1) % 8 + 1] title (counts[i] > 0 ? label(i) : "")
    unset output
}
