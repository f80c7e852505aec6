"""The stories of word_problems_data.py: kinds of equations, and phrasings of each."""

# A line ending with a colon is a kind, the equation; the others are its phrasings, of which
# training does not have the last.
_TEXT = """\
a+b:
The {who} has {a} {things} and {gets} {b} more. How many {things} does the {who} have now?
There are {a} {things} on the table. The {who} puts {b} more there. How many are there now?
In the morning the {who} {gets} {a} {things}, in the afternoon {b}. How many is that in all?
A shop has {a} {things} in the window and {b} in the store. How many {things} does it have?
One of the {boxes} holds {a} {things}, another {b}. What is the total number of {things}?
After {a} {things} came on Monday, {b} others came on Tuesday. How many {things} came in all?
a-b:
The {who} has {a} {things} and {loses} {b}. How many {things} are left?
Of {a} {things}, the {who} {loses} {b}. How many does the {who} still have?
There were {a} {things}. Then {b} were taken away. How many {things} remain?
A {who} wants {a} {things} and has {b}. How many are missing?
The {who} has {a} {things}, the {other} has {b}. How many more does the {who} have?
How many of the {a} {things} remain with the {who} if {b} are missing?
a+b-c:
The {who} has {a} {things}, {gets} {b} more and {loses} {c}. How many {things} are left?
There are {a} {things} in a shop. It {gets} {b}, and then sells {c}. How many remain?
A bus has {a} people in it. At a stop {b} get on and {c} get off. How many are in the bus?
The {who} {gets} {a} {things} on Monday and {b} on Tuesday, and {loses} {c}. \
How many does the {who} still have?
After it got {b} more {things}, a shop that had {a} sold {c}. How many are left?
a-b+c:
The {who} has {a} {things}, {loses} {b} and then {gets} {c}. How many {things} is that?
There were {a} {things} on the table. {b} fell down, and {c} were put back. \
How many are on the table?
A shop has {a} {things}. It sells {b} and then gets {c} more. How many does it have now?
Of {a} {things} the {who} {loses} {b}, and later {gets} {c}. How many are there now?
The {who}, who had {a} {things}, first {loses} {b} and later {gets} {c}. How many remain?
a*b:
There are {a} {boxes} with {b} {things} in each. How many {things} are there?
Each of {a} {boxes} has {b} {things}. How many {things} are there in all?
The {who} buys {a} {things} that cost {b} coins each. How much does the {who} pay?
The {who} reads {b} pages a day. How many pages is that in {a} days?
A train drives {a} hours at {b} miles an hour. How far does it go?
How many {things} fill {a} {boxes} if {b} fit into one?
a/b:
The {who} shares {a} {things} equally among {b} children. How many does each child get?
{a} {things} are put into {b} {boxes}, equally many in each. How many are in each?
{b} {things} cost {a} coins. How much is one of them?
The {who} puts {b} {things} into each box. How many boxes does the {who} need for {a} {things}?
A train drives {a} miles in {b} hours. How many miles does it go in an hour?
How many {things} does each of {b} people get if the {who} divides {a} equally?
a*b+c:
The {who} has {a} {boxes} with {b} {things} in each, and {c} more. How many {things} is that?
There are {a} {boxes} of {b} {things} and {c} single {things}. How many are there in all?
The {who} buys {a} {things} for {b} coins each and a bag for {c} coins. What is the price?
The {who} earns {b} coins an hour, works {a} hours and gets {c} coins more. How many coins is that?
How many {things} does the {who} have with {c} on the table and {a} {boxes} of {b}?
a*b-c:
The {who} has {a} {boxes} with {b} {things} in each and {loses} {c}. How many are left?
There are {a} {boxes} of {b} {things}. The {who} takes {c} out. How many {things} remain?
Each of {a} {boxes} had {b} {things}, but {c} of the {things} are broken. How many are good?
The {who} earns {b} coins an hour, works {a} hours and spends {c} coins. How many are left?
If {c} are missing from {a} {boxes} of {b} {things} each, how many are there?
(a-b)/c:
The {who} has {a} {things}, keeps {b} and shares the rest equally among {c} children. \
How many does each get?
Of {a} {things}, {b} are broken. The others are put into {c} {boxes}, equally many in each. \
How many are in each?
After the {who} {loses} {b} of {a} {things}, {c} people share the rest. How many does each get?
The {who} has {a} coins, spends {b} and divides the rest into {c} equal parts. How large is a part?
How many does each of {c} children get of {a} {things}, of which the {who} keeps {b}?
(a+b)/c:
The {who} has {a} {things}, {gets} {b} more and shares all equally among {c} children. \
How many does each get?
{a} red and {b} blue {things} are put into {c} {boxes}, equally many in each. How many are in each?
The {who} and the {other} have {a} and {b} {things}. Together they fill {c} {boxes} equally. \
How many {things} are in each?
A shop gets {a} {things} and then {b}. It puts them into {c} {boxes}. How many are in each?
If {c} people share {a} {things} and {b} more equally, how many does each of them get?
a*b+c*d:
There are {a} {boxes} with {b} {things} and {c} {boxes} with {d} {things}. \
How many {things} are there?
The {who} buys {a} {things} for {b} coins each and {c} tickets for {d} coins each. \
How much does the {who} pay?
The {who} works {a} hours for {b} coins an hour and {c} hours for {d} coins an hour. \
How many coins is that?
A train drives {a} hours at {b} miles an hour and {c} hours at {d}. How far does it go?
How much do {a} {things} at {b} coins and {c} others at {d} coins cost together?
a+(a+b):
The {who} has {a} {things}, the {other} has {b} more than the {who}. \
How many do they have together?
One of the {boxes} holds {a} {things}, another {b} more than this. How many is that in all?
On Monday {a} {things} are sold, on Tuesday {b} more than on Monday. \
How many are sold on both days?
The {who} {gets} {a} {things}, the {other} {b} more than that. What is the total?
How many {things} are there with the {who}, who has {a}, and the {other}, who has {b} more?
a+a*b:
The {who} has {a} {things}, the {other} has {b} times as many. How many do they have together?
One of the {boxes} holds {a} {things}, another {b} times as many. How many is that in all?
On Monday {a} {things} are sold, on Tuesday {b} times as many. How many are sold on both days?
The {who} {gets} {a} {things}, the {other} {b} times that number. What is the total?
How many {things} are there with the {who}, who has {a}, and the {other}, who has {b} times that?
a-b*c:
The {who} has {a} coins and buys {b} {things} for {c} coins each. How many coins are left?
From {a} {things} the {who} fills {b} {boxes} with {c} in each. How many {things} remain?
A {who} with {a} {things} gives {c} to each of {b} children. How many are left?
A book has {a} pages. The {who} reads {c} pages a day for {b} days. How many pages remain?
How many of {a} coins remain if the {who} spends {c} coins on each of {b} days?
(a+b+c)/3:
The {who} {gets} {a}, {b} and {c} {things} on three days. What is the average of a day?
Three {boxes} hold {a}, {b} and {c} {things}. What is the average?
The {who} has three {boxes} with {a}, {b} and {c} {things} and makes them equal. \
How many are in each?
What is the average of {a}, {b} and {c} {things}?
On average, how many {things} are in three {boxes} of {a}, {b} and {c}?
a*b/100:
The {who} has {a} {things}, and {b} percent of them are red. How many are red?
Of {a} {things}, the {who} {loses} {b} percent. How many {things} is that?
A price of {a} coins grows by {b} percent. How many coins are added?
What is {b} percent of {a} {things}?
How many of {a} {things} are broken if {b} percent are?
"""


def _by_kind() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for line in _TEXT.splitlines():
        if line.endswith(":"):
            kind = line[:-1]
            found[kind] = ()
        else:
            found[kind] += (line,)
    return found


STORIES = _by_kind()
