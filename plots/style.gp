# The common style: colour-blind safe (Okabe-Ito), distinct in grey, readable at column width.
# Scripts are called as: gnuplot -e "indir='D'; outdir='D'; scriptdir='plots'" plots/NAME.gp
set datafile separator comma
set border 3 lw 1 lc rgb "#404040"
set tics nomirror out
set grid y lc rgb "#d8d8d8" lw 1
set style fill solid 0.9 noborder
colour_prefill = "#0072b2"
colour_decode  = "#e69f00"
colour_merge   = "#111111"
colour_floor   = "#d55e00"
colour_bar     = "#56b4e9"
array colours[8] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#111111"]
array dashes[8] = [1, 2, 3, 4, 5, 1, 2, 3]

# Column `name` of every row of a CSV, space separated (values without spaces), by header.
values_of(file, name) = system(sprintf("awk -F, -v want='%s' 'NR==1{for(i=1;i<=NF;i++)if($i==want)c=i;next} c{print $c}' '%s'", name, file))
is_missing(file) = (system(sprintf("test -s '%s' && echo 0 || echo 1", file)) + 0)
first_float(list) = (words(list) > 0 ? real(word(list, 1)) : NaN)

# One terminal after another for the same picture: open_output(1..3, name, width, height in pixels).
n_outputs = 3
array terminals[3] = ["pngcairo enhanced font 'DejaVu Sans,15' linewidth 1.5", "svg enhanced font 'DejaVu Sans,12' background 'white'", "pdfcairo enhanced font 'DejaVu Sans,9'"]
array endings[3] = ["png", "svg", "pdf"]
size_of(i, w, h) = (i == 3 ? sprintf("size %.2fin,%.2fin", w / 160.0, h / 160.0) : sprintf("size %d,%d", w, h))
open_output(i, name, w, h) = sprintf("set terminal %s %s; set output '%s/%s.%s'", terminals[i], size_of(i, w, h), outdir, name, endings[i])
